"""Are the parameters of a wrapped module still what the buckets were built for?"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class AsWrapped:
    """What was found when a module was wrapped."""

    def __init__(self, module: nn.Module, named_parameters: Sequence[tuple[str, Tensor]]) -> None:
        """
        Args:
            module: that has the parameters.
            named_parameters: those to watch.
        """
        self._module = module
        self._watched = [
            (name, p, p.requires_grad, p.dtype, p.is_cuda, p.device) for name, p in named_parameters
        ]

    def require(self, *, thorough: bool) -> None:
        """
        Args:
            thorough: whether to look up each parameter in the module too. It takes longer, and is
                needed only when no hook has fired since the last forward: then the output may
                have been dropped, or the module may have other parameters by now.

        Raises:
            RuntimeError: a parameter changed requires_grad, dtype or device, or was replaced.
        """
        for name, parameter, trains, dtype, on_cuda, device in self._watched:
            # Before each step, so only what is looked up fast: two kinds of device, not which.
            if (
                parameter.requires_grad is not trains
                or parameter.dtype is not dtype
                or parameter.is_cuda is not on_cuda
            ):
                raise RuntimeError(
                    f"parameter {name!r} had (requires_grad, dtype, device) = "
                    f"{(trains, dtype, device)} when it was wrapped and now has "
                    f"{_state(parameter)}; wrap the module again"
                )
        if thorough:
            held = dict(self._module.named_parameters())
            for name, parameter, *_ in self._watched:
                if held.get(name) is not parameter:
                    raise RuntimeError(
                        f"parameter {name!r} was replaced after it was wrapped, so that nothing "
                        "averages its gradient; wrap the module again"
                    )


def _state(parameter: Tensor) -> tuple[bool, torch.dtype, torch.device]:
    return parameter.requires_grad, parameter.dtype, parameter.device
