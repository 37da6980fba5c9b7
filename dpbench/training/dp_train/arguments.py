"""The arguments of `dp_train`, checked before any model is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

import torch
from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from dpbench.parallel.devices import parse_device

Mode = Literal["sequential", "threads", "processes"]
OnNonFinite = Literal["raise", "record"]
Callback = Callable[[int, Sequence[nn.Module]], None]
"""Called with the iteration, from 1, and all replicas."""
Scheduler = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]
AtLeastZero = Annotated[int, Field(ge=0)]
AtLeastOne = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True, config=ConfigDict(strict=True, arbitrary_types_allowed=True))
class DpTrainArguments:
    """The arguments of one training."""

    data: Any
    loss_fn: Callable[[Any, Any], Tensor] | None
    forward_fn: Callable[[nn.Module, Any], Any] | None
    target_fn: Callable[[Any], Any] | None
    mode: Mode
    n_gpu: AtLeastOne | None
    devices: Annotated[list[Any] | tuple[Any, ...], Field(min_length=1)] | None
    n_iter: AtLeastZero
    batch_per_replica: AtLeastOne
    lr: Positive
    max_norm: Annotated[float, Field(gt=0)]
    optimizer: Callable[..., torch.optim.Optimizer]
    scheduler: Scheduler | None
    seed: AtLeastZero
    on_nonfinite: OnNonFinite
    verbose: bool | AtLeastZero | None
    on_backward: Callback | None
    on_reduce: Callback | None
    on_step: Callback | None
    on_broadcast: Callback | None
    time_limit_seconds: Positive

    @cached_property
    def replica_devices(self) -> tuple[torch.device, ...]:
        """One device per replica. Raises ValueError for one that is not here."""
        if self.devices is not None:
            return tuple(map(parse_device, self.devices))
        visible = torch.cuda.device_count()
        count = self.n_gpu or max(1, visible)
        if 0 < visible < count:
            raise ValueError(
                f"got n_gpu={count}, but {visible} CUDA devices are visible; for more replicas "
                "than devices pass devices=[...], e.g. ['cuda:0'] * 2"
            )
        return tuple(torch.device(f"cuda:{i}" if visible else "cpu") for i in range(count))

    @property
    def samples_per_step(self) -> int:
        return len(self.replica_devices) * self.batch_per_replica


def checked(**given: Any) -> DpTrainArguments:
    """The arguments. Raises ValueError or TypeError with the name and value of a wrong one."""
    try:
        arguments = DpTrainArguments(**given)
    except ValidationError as error:
        first = error.errors()[0]
        name = first["loc"][0]
        raise ValueError(f"got {name}={given[str(name)]!r}: {first['msg']}") from None
    callbacks = [name for name in given if name.startswith("on_") and callable(given[name])]
    if arguments.mode == "processes" and callbacks:
        raise ValueError(f"got {', '.join(callbacks)} with mode='processes'; use mode='threads'")
    devices, count = arguments.devices, arguments.n_gpu
    if devices is not None and count not in (None, len(devices)):
        raise ValueError(f"got n_gpu={count} and {len(devices)} devices; omit one of them")
    data, needed = arguments.data, arguments.samples_per_step
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise TypeError(f"got data of type {type(data).__name__}, expected a sequence of samples")
    if len(data) < needed:
        raise ValueError(
            f"got {len(data)} samples for {needed} in a step (replicas × batch_per_replica); use "
            "fewer replicas or more data"
        )
    return arguments
