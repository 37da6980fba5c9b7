"""The size of an architecture's model, without its memory and its initial values."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from dpbench.architecture.protocol import Architecture

_RANDOM = ("normal_", "uniform_")


def count_parameters(architecture: Architecture) -> int:
    """Number of parameters of the architecture's model."""
    with torch.device("meta"), _WithoutValues():
        return sum(parameter.numel() for parameter in architecture.build_model().parameters())


class _WithoutValues(TorchFunctionMode):
    """Leaves out initial values: random numbers for tensors without memory would import torch's
    compiler, for more than a second."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if getattr(func, "__name__", "").endswith(_RANDOM):
            return args[0] if args else named["tensor"]  # as torch.nn.init has it
        return func(*args, **named)
