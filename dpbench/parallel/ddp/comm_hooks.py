"""Communication hooks: the user's function in place of the all-reduce of a bucket."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass
class GradientBucket:
    """The argument of a hook, in place of torch's GradBucket, which Python cannot construct."""

    _index: int
    _buffer: Tensor
    _gradients: list[Tensor]
    _parameters: list[nn.Parameter]
    _is_last: bool

    def index(self) -> int:
        """0 for the bucket that is ready first."""
        return self._index

    def buffer(self) -> Tensor:
        """The flat gradient of this rank, not divided by the number of ranks."""
        return self._buffer

    def gradients(self) -> list[Tensor]:
        """Views of the buffer in the shapes of the parameters."""
        return self._gradients

    def parameters(self) -> list[nn.Parameter]:
        """The parameters, in the order of the gradients."""
        return self._parameters

    def is_last(self) -> bool:
        """Whether no other bucket follows in this backward."""
        return self._is_last

    def set_buffer(self, buffer: Tensor) -> None:
        """Replace the buffer, for example by one of another dtype, and the gradients with it."""
        start = self._buffer.storage_offset()
        self._gradients = [
            buffer.as_strided(view.size(), view.stride(), view.storage_offset() - start)
            for view in self._gradients
        ]
        self._buffer = buffer


Future = torch.futures.Future
Hook = Callable[[GradientBucket], Future[Any]]
"""A hook with its state; its future holds the average, or a list of which that is the first."""
