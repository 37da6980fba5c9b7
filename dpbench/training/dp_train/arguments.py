"""The arguments of `dp_train`, checked before any model is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from dpbench.parallel.devices import DeviceLike, parse_device

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
    devices: list[Any] | tuple[Any, ...] | None
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

    @property
    def period(self) -> int | None:
        """Iterations between reports; None for no report."""
        return max(1, self.n_iter // 10) if self.verbose is True else self.verbose or None


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
        raise ValueError(
            f"got {', '.join(callbacks)} with mode='processes', but callbacks see all replicas, "
            "which are in other processes; use mode='threads' or 'sequential'"
        )
    data = arguments.data
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise TypeError(f"got data of type {type(data).__name__}, expected a sequence of samples")
    if len(data) == 0:
        raise ValueError("data is empty, expected at least one sample per replica")
    return arguments


def choose_devices(
    n_gpu: int | None, devices: Sequence[DeviceLike] | None
) -> tuple[torch.device, ...]:
    """One device per replica.

    Raises ValueError or TypeError: a device is invalid, there are more replicas than GPUs without a
    list of devices, or both arguments are given with different counts.
    """
    if devices is not None:
        if not devices:
            raise ValueError(f"got devices={devices!r}, expected a list with one per replica")
        if n_gpu not in (None, len(devices)):
            raise ValueError(f"got n_gpu={n_gpu} and {len(devices)} devices; omit one of them")
        return tuple(parse_device(device) for device in devices)
    visible = torch.cuda.device_count()
    count = max(1, visible) if n_gpu is None else n_gpu
    if not visible:
        return (torch.device("cpu"),) * count
    if count > visible:
        raise ValueError(
            f"got n_gpu={n_gpu}, but {visible} CUDA devices are visible; for more replicas than "
            "devices pass devices=[...], e.g. ['cuda:0'] * 2"
        )
    return tuple(torch.device("cuda", index) for index in range(count))
