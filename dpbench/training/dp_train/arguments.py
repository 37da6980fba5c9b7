"""The arguments of `dp_train`, checked before anything is made or started."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from dpbench.parallel.devices import DeviceLike, parse_device
from dpbench.parallel.tree import move

Mode = Literal["sequential", "threads", "processes"]
OnNonFinite = Literal["raise", "record"]
Callback = Callable[[int, Sequence[nn.Module]], None]
"""Called with the iteration, from 1, and all replicas."""
Scheduler = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """The data, and how to compute a model's loss on one sample."""

    data: Any
    loss_fn: Callable[[Any, Any], Tensor] | None
    forward_fn: Callable[[nn.Module, Any], Any] | None
    target_fn: Callable[[Any], Any] | None

    def __post_init__(self) -> None:
        _check_functions(loss_fn=self.loss_fn, forward_fn=self.forward_fn, target_fn=self.target_fn)

    def loss(self, model: nn.Module, index: int, device: torch.device) -> Any:
        """Loss of sample `index`, whose tensors are moved to `device`."""
        sample = move(self.data[index], device)
        output = model(sample) if self.forward_fn is None else self.forward_fn(model, sample)
        if self.loss_fn is None:
            return output
        return self.loss_fn(output, sample if self.target_fn is None else self.target_fn(sample))


@dataclass(frozen=True, kw_only=True, slots=True)
class DpTrainArguments:
    """All other arguments; the message of each error has the name and the value."""

    mode: Mode
    devices: tuple[torch.device, ...]
    n_iter: int
    batch_per_replica: int
    lr: float
    max_norm: float
    optimizer: Callable[..., torch.optim.Optimizer]
    scheduler: Scheduler | None
    seed: int
    on_nonfinite: OnNonFinite
    callbacks: dict[str, Callback | None]
    """Callbacks by the part of a step after which they are called."""
    time_limit_seconds: float

    def __post_init__(self) -> None:
        _choice("mode", self.mode, get_args(Mode))
        _choice("on_nonfinite", self.on_nonfinite, get_args(OnNonFinite))
        _check_int("n_iter", self.n_iter, least=0)
        _check_int("batch_per_replica", self.batch_per_replica, least=1)
        _check_int("seed", self.seed, least=0)
        _number("lr", self.lr, infinite=False)
        _number("max_norm", self.max_norm, infinite=True)
        _number("time_limit_seconds", self.time_limit_seconds, infinite=False)
        if not callable(self.optimizer):
            raise TypeError(f"got optimizer={self.optimizer!r}, expected a function or class")
        _check_functions(scheduler=self.scheduler, **self.callbacks)
        given = [name for name, callback in self.callbacks.items() if callback is not None]
        if self.mode == "processes" and given:
            raise ValueError(
                f"got {', '.join(given)} with mode='processes', but callbacks see all "
                "replicas, which are in other processes; use mode='threads' or 'sequential'"
            )

    @property
    def samples_per_step(self) -> int:
        return len(self.devices) * self.batch_per_replica


def choose_devices(
    n_gpu: int | None, devices: Sequence[DeviceLike] | None
) -> tuple[torch.device, ...]:
    """One device per replica.

    Raises:
        TypeError, ValueError: a count or device is invalid, there are more replicas than GPUs
            without a list of devices, or both arguments are given with different counts.
    """
    if n_gpu is not None:
        _check_int("n_gpu", n_gpu, least=1)
    if devices is not None:
        if isinstance(devices, (str, bytes)) or not isinstance(devices, Sequence) or not devices:
            raise TypeError(f"got devices={devices!r}, expected a list with one per replica")
        if n_gpu not in (None, len(devices)):
            raise ValueError(f"got n_gpu={n_gpu} and {len(devices)} devices; leave one out")
        return tuple(parse_device(device) for device in devices)
    visible = torch.cuda.device_count()
    count = max(1, visible) if n_gpu is None else n_gpu
    if not visible:
        return (torch.device("cpu"),) * count
    if count > visible:
        raise ValueError(
            f"got n_gpu={n_gpu}, but {visible} CUDA devices are visible; for more replicas than "
            "devices give devices=[...], e.g. ['cuda:0'] * 2"
        )
    return tuple(torch.device("cuda", index) for index in range(count))


def reporting_period(verbose: bool | int | None, n_iter: int) -> int | None:
    """Number of iterations between reports (the first and the last are always reported); None means
    never.

    Raises:
        TypeError, ValueError: `verbose` is not a bool, an int of 0 or more, or None.
    """
    if verbose is None or verbose is False:
        return None
    if verbose is True:
        return max(1, n_iter // 10)
    _check_int("verbose", verbose, least=0)
    return verbose or None


def check_data(data: Any, samples_per_step: int) -> None:
    """Raise unless `data` can be indexed and has samples for one step."""
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise TypeError(f"got data of type {type(data).__name__}, expected a sequence of samples")
    if len(data) == 0:
        raise ValueError("data is empty, expected at least one sample per replica")
    if len(data) < samples_per_step:
        raise ValueError(
            f"got {len(data)} samples for {samples_per_step} in a step (replicas × "
            "batch_per_replica); use fewer replicas or more data"
        )


def _check_functions(**named: Any) -> None:
    for name, value in named.items():
        if value is not None and not callable(value):
            raise TypeError(f"got {name}={value!r}, expected a function or None")


def _check_int(name: str, value: Any, *, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"got {name}={value!r}, expected an int of {least} or more")
    if value < least:
        raise ValueError(f"got {name}={value}, expected an int of {least} or more")


def _number(name: str, value: Any, *, infinite: bool) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"got {name}={value!r}, expected a number above 0")
    if not value > 0 or (math.isinf(value) and not infinite):
        finite = "" if infinite else "finite "
        raise ValueError(f"got {name}={value}, expected a {finite}number above 0")


def _choice(name: str, value: Any, known: Sequence[str]) -> None:
    if value not in known:
        raise ValueError(f"got {name}={value!r}, expected one of {', '.join(known)}")
