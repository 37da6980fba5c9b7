"""The CPU in the place of every GPU that torch's tests ask for.

Nearly all of torch's tests for DistributedDataParallel put rank r on GPU r and skip without; hardly
any is about GPUs. Here `.cuda(1)`, `device=0` and `"cuda:1"` all mean the CPU.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

CALLS = ("set_device", "synchronize")
CPU = torch.device("cpu")


class EveryGpuIsTheCpu(TorchFunctionMode):
    """Calls of torch functions with a GPU as an argument get the CPU for it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0].to(CPU)
        if func is torch.Tensor.to:
            args = tuple(CPU if _is_gpu(argument) else argument for argument in args)
        if _is_gpu(kwargs.get("device")):
            kwargs["device"] = CPU
        return func(*args, **kwargs)


def _is_gpu(place: Any) -> bool:
    if isinstance(place, torch.device):
        return place.type == "cuda"
    return type(place) is int or (isinstance(place, str) and place.startswith("cuda"))


def stand_in(wrapper: type, count: int) -> None:
    """Make the CPU every GPU of this process, for good.

    Args:
        wrapper: a DistributedDataParallel, which is not asked any more to be on GPU r.
        count: how many GPUs there seem to be.
    """
    EveryGpuIsTheCpu().__enter__()
    torch.cuda.device_count = lambda: count
    torch.cuda.current_device = lambda: 0
    for name in CALLS:
        setattr(torch.cuda, name, lambda device=None: None)
    move = torch.nn.Module.to
    torch.nn.Module.to = lambda self, *args, **kwargs: move(
        self, *(CPU if _is_gpu(place) else place for place in args), **kwargs
    )
    construct = wrapper.__init__

    @functools.wraps(construct)
    def on_the_cpu(
        self: Any,
        module: Any,
        device_ids: Any = None,
        output_device: Any = None,
        *args: Any,
        **kw: Any,
    ) -> None:
        construct(self, module, None, None, *args, **kw)

    wrapper.__init__ = on_the_cpu
