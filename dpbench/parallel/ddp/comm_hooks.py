"""Communication hooks: the user's function in place of the all-reduce of a bucket."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


class GradientBucket:
    """The argument of a hook, in place of torch's GradBucket, which Python cannot construct."""

    def __init__(
        self,
        index: int,
        buffer: Tensor,
        gradients: Sequence[Tensor],
        parameters: Sequence[Tensor],
        is_last: bool,
    ) -> None:
        self._index = index
        self._buffer = buffer
        self._gradients = list(gradients)
        self._parameters = list(parameters)
        self._is_last = is_last

    def index(self) -> int:
        """0 for the bucket that is ready first."""
        return self._index

    def buffer(self) -> Tensor:
        """The flat gradient of this rank, not divided by the number of ranks."""
        return self._buffer

    def gradients(self) -> list[Tensor]:
        """Views of the buffer in the shapes of the parameters."""
        return self._gradients

    def parameters(self) -> list[Tensor]:
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
