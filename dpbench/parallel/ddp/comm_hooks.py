"""Communication hooks: the user's function in place of the all-reduce of a bucket."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor


class GradientBucket:
    """The argument of a hook: torch.distributed.GradBucket, which Python cannot construct."""

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


def checked_hook(state: object, hook: Callable[..., Any]) -> Hook:
    """The hook with its state, called with a bucket.

    Raises:
        TypeError: the hook cannot be called, or has no parameter named "bucket".
    """
    if not callable(hook):
        raise TypeError("Communication hook must be callable.")
    if "bucket" not in (parameters := inspect.signature(hook).parameters):
        raise TypeError(
            f"Communication hook: got the parameters ({', '.join(parameters)}), expected (state, "
            "bucket)."
        )
    return partial(_call, hook, state)


def _call(hook: Callable[..., Any], state: object, bucket: GradientBucket) -> Future[Any]:
    future: Future[Any] = hook(state, bucket)
    # Those of collectives are not of the public torch.futures.Future.
    if not callable(getattr(future, "wait", None)):
        raise RuntimeError(
            "callback must return a torch.futures.Future object, but got "
            f"{type(future).__name__} from the communication hook"
        )
    return future


def reduced(future: Future[Any], numel: int) -> Tensor:
    """Wait for a hook's result.

    Raises:
        RuntimeError: the hook failed, or its result is no tensor of `numel` elements.
    """
    result = future.wait()
    tensor = result[0] if isinstance(result, (list, tuple)) else result
    if not isinstance(tensor, Tensor) or tensor.numel() != numel:
        got = tuple(tensor.shape) if isinstance(tensor, Tensor) else repr(tensor)
        raise RuntimeError(
            f"the communication hook's future holds {got}, expected a tensor with the {numel} "
            "elements of the bucket's buffer"
        )
    return tensor
