"""Communication hooks: functions of the user that average a bucket in place of the all-reduce."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dpbench.parallel.ddp.buckets import Bucket
from dpbench.parallel.groups import Wait


class HookBucket:
    """The argument of a hook, in place of torch's GradBucket, which Python cannot construct."""

    def __init__(self, bucket: Bucket, *, is_last: bool) -> None:
        self._bucket, self._is_last = bucket, is_last
        self._buffer, self._gradients = bucket.flat, bucket.views

    def index(self) -> int:
        """0 for the bucket that is ready first."""
        return self._bucket.number

    def buffer(self) -> Tensor:
        """The flat gradient of this rank, not divided by the number of ranks."""
        return self._buffer

    def gradients(self) -> list[Tensor]:
        """Views of the buffer in the shapes of the parameters."""
        return self._gradients

    def parameters(self) -> list[nn.Parameter]:
        """The parameters, in the order of the gradients."""
        return self._bucket.parameters

    def is_last(self) -> bool:
        """Whether no other bucket follows in this backward."""
        return self._is_last

    def set_buffer(self, buffer: Tensor) -> None:
        """Replace the buffer, for example by one of another dtype, and the gradients with it."""
        self._buffer, self._gradients = buffer, self._bucket.views_in(buffer)


Hook = Callable[[HookBucket], torch.futures.Future[Any]]
"""A hook with its state; its future holds the average, or a list of which that is the first."""


def start_hook(hook: Hook, bucket: Bucket, *, is_last: bool) -> Wait:
    """Have a hook average a bucket that has gradients.

    Raises:
        RuntimeError: the hook returns no future.
    """
    flat, future = bucket.flat, hook(HookBucket(bucket, is_last=is_last))
    if not hasattr(future, "wait"):
        raise RuntimeError(
            "callback must return a torch.futures.Future object, but got "
            f"{type(future).__name__} from the communication hook"
        )

    def wait() -> None:
        result = future.wait()
        average = result[0] if isinstance(result, (list, tuple)) else result
        if average.data_ptr() != flat.data_ptr() or average.dtype != flat.dtype:
            flat.copy_(average.reshape(flat.shape))

    return wait
