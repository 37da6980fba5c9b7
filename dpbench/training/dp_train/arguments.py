"""Checks of the arguments of `dp_train` that go together, before any model is made."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, ParamSpec, TypeVar

import torch
from pydantic import ConfigDict, ValidationError, validate_call
from torch import nn

from dpbench.messages import printable
from dpbench.parallel.devices import parse_device

Callback = Callable[[int, Sequence[nn.Module]], None]
"""Called with the iteration, from 1, and all replicas."""
Task = SimpleNamespace
"""The arguments of `dp_train` but for make_model, by name; `devices` has one for each replica."""


P = ParamSpec("P")
R = TypeVar("R")
LONGEST_SHOWN = 60
"""Characters of a wrong value that an error shows."""


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function to check its arguments against their annotations.

    A wrong value is a ValueError of one line; a missing or unknown argument is a TypeError, as
    always in Python.
    """
    config = ConfigDict(strict=True, arbitrary_types_allowed=True)
    validated, signature = validate_call(config=config)(function), inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        signature.bind(*args, **kwargs)
        try:
            return validated(*args, **kwargs)
        except ValidationError as error:
            if error.title != function.__name__:  # from a function of the user
                raise
            first = error.errors(include_url=False)[0]
        where = first["loc"][0]
        name = [*signature.parameters][where] if isinstance(where, int) else where
        expected = str(first["msg"]).replace("Input should be", "expected")
        got = printable(repr(first["input"]), LONGEST_SHOWN)
        raise ValueError(f"{function.__name__}: {name}: got {got}; {expected}")

    return call


def replica_devices(n_gpu: int | None, devices: Sequence[Any] | None) -> list[torch.device]:
    """One device per replica. Raises ValueError for one that is not here."""
    if devices is not None:
        if n_gpu not in (None, len(devices)):
            raise ValueError(f"got n_gpu={n_gpu} and {len(devices)} devices; omit one of them")
        return [parse_device(device) for device in devices]
    visible = torch.cuda.device_count()
    count = n_gpu or max(1, visible)
    if 0 < visible < count:
        raise ValueError(
            f"got n_gpu={count}, but {visible} CUDA devices are visible; for more replicas than "
            "devices pass devices=[...], e.g. ['cuda:0'] * 2"
        )
    return [torch.device(f"cuda:{i}" if visible else "cpu") for i in range(count)]


def check(task: Task) -> None:
    """Raise ValueError or TypeError for arguments that do not go together."""
    callbacks = [
        name for name, value in vars(task).items() if name.startswith("on_") and callable(value)
    ]
    if task.mode == "processes" and callbacks:
        raise ValueError(f"got {', '.join(callbacks)} with mode='processes'; use mode='threads'")
    data, needed = task.data, len(task.devices) * task.batch_per_replica
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise TypeError(f"got data of type {type(data).__name__}, expected a sequence of samples")
    if not len(data):
        raise ValueError("data is empty, expected at least one sample for each replica")
    if len(data) < needed:
        raise ValueError(
            f"got {len(data)} samples for {needed} in a step (replicas × batch_per_replica); use "
            "fewer replicas or more data"
        )
