"""How a bucket is averaged over the ranks: by an all-reduce, or by a communication hook."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dpbench.parallel.ddp.buckets import Bucket
from dpbench.parallel.groups import Wait

_ASYNC = dist.AllreduceOptions()
_ASYNC.asyncOp = True


class AllReduceAverager:
    """Averages each bucket by one all-reduce."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group

    def scale(self, divisor: int) -> float:
        """What to multiply gradients by before `start`, so that the sum is divided by `divisor`."""
        return 1 / divisor

    def start(self, bucket: Bucket) -> Wait:
        """Start to average a bucket, whose gradients are scaled."""
        # Not dist.all_reduce, whose checks and logging take longer than a small bucket.
        wait: Wait = self._group.allreduce([bucket.wire], _ASYNC).wait
        return wait


class HookAverager:
    """Averages by a function of the user, which gets the buckets that have gradients."""

    def __init__(self, hook: Hook) -> None:
        self._hook = hook

    def scale(self, divisor: int) -> float:
        return 1.0

    def start(self, bucket: Bucket) -> Wait:
        """Call the hook; raises RuntimeError if it returns no future."""
        flat = bucket.flat
        if not bucket.parameters:
            return lambda: None
        future = self._hook(HookBucket(bucket))
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


class HookBucket:
    """The argument of a hook, in place of torch's GradBucket, which Python cannot construct."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket, self._buffer, self._gradients = bucket, bucket.flat, bucket.views

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
        return self._bucket.is_last

    def set_buffer(self, buffer: Tensor) -> None:
        """Replace the buffer, for example by one of another dtype, and the gradients with it."""
        self._buffer, self._gradients = buffer, self._bucket.views_in(buffer)


BucketAverager = AllReduceAverager | HookAverager
Hook = Callable[[HookBucket], torch.futures.Future[Any]]
"""A hook with its state; its future holds the average, or a list of which that is the first."""
