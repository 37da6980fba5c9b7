"""The collective that averages a flat tensor over ranks, or the user's function in its place."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dpbench.parallel.shm import zeros


class Exchange:
    """The operations of a backend on gradients of one kind of device.

    Attributes:
        group: the ranks.
        size: number of ranks.
        averages: whether the collective itself divides by the number of ranks; if not, the
            gradients are divided while the tensor is filled.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self.group = group
        self.size = dist.get_world_size(group)
        # For other backends the division is free, as part of copying the gradients.
        self.averages = device.type == "cuda" and "cuda:nccl" in dist.get_backend_config(group)

        self._sum, self._mean = _options(dist.ReduceOp.SUM), _options(dist.ReduceOp.AVG)

    def zeros(self, count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A flat tensor of zeros; a collective where memory is shared, so call it in one order on
        all ranks."""
        return zeros(self.group, count, dtype, device)

    def factor(self, divisor: int | None) -> float:
        """The factor of a gradient before it is summed, for a mean.

        Args:
            divisor: of the sum; None means the number of ranks, by which the collective may divide.
        """
        return 1.0 if divisor is None and self.averages else 1 / (divisor or self.size)

    def start(self, flat: Tensor, *, average: bool) -> dist.Work | None:
        """Begin the sum of `flat` over the ranks, or its mean, in place; wait for the result.

        Returns:
            None where there is nothing to wait for.

        Raises:
            ValueError: the mean is asked of a backend that only sums.
        """
        if average and not self.averages:
            raise ValueError(f"{dist.get_backend(self.group)} sums only")
        if self.size == 1 or not flat.numel():
            return None
        wire = torch.view_as_real(flat) if flat.is_complex() else flat
        # Not dist.all_reduce: its checks and call logging would take most of the time.
        work: dist.Work = self.group.allreduce([wire], self._mean if average else self._sum)
        return work


def _options(operator: Any) -> dist.AllreduceOptions:
    options = dist.AllreduceOptions()
    options.reduceOp = operator
    options.asyncOp = True
    return options


class GradientBucket:
    """The argument of a hook, with the methods of torch.distributed.GradBucket, which Python cannot
    construct."""

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
        return self._parameters

    def is_last(self) -> bool:
        return self._is_last

    def set_buffer(self, buffer: Tensor) -> None:
        self._buffer = buffer


GRAD_BUCKET = dist.GradBucket  # type: ignore[attr-defined]
Future = torch._C.Future
"""The base class of futures; those of collectives are not of the public torch.futures.Future."""

Hook = Callable[[GradientBucket], "Future[Any]"]


def checked_hook(state: object, hook: Callable[..., Any]) -> Hook:
    """The hook with its state, called with a bucket.

    Raises:
        TypeError: the hook cannot be called, or has no parameter named "bucket".
        ValueError: the annotations are not those of a hook.
    """
    if not callable(hook):
        raise TypeError("Communication hook must be callable.")
    try:
        # Annotations are strings in a module with `from __future__ import annotations`.
        signature = inspect.signature(hook, eval_str=True)
    except (NameError, AttributeError):
        signature = inspect.signature(hook)
    if "bucket" not in signature.parameters:
        raise TypeError(
            "Communication hook: got the parameters "
            f"({', '.join(signature.parameters)}), expected (state, bucket)."
        )
    bucket = signature.parameters["bucket"].annotation
    if not _says(bucket, GRAD_BUCKET):
        raise ValueError("Communication hook: bucket annotation should be dist.GradBucket.")
    if not _says(signature.return_annotation, torch.futures.Future[torch.Tensor]):
        raise ValueError(
            "Communication hook: return annotation should be torch.futures.Future[torch.Tensor]."
        )
    return partial(_call, hook, state)


def _says(annotation: object, expected: object) -> bool:
    """Whether an annotation is the expected one, is missing, or cannot be resolved."""
    nothing = annotation in (inspect.Parameter.empty, Any) or isinstance(annotation, str)
    return nothing or annotation == expected


def _call(hook: Callable[..., Any], state: object, bucket: GradientBucket) -> Future[Any]:
    future = hook(state, bucket)
    if not isinstance(future, Future):
        raise RuntimeError(
            "callback must return a torch.futures.Future object, but got "
            f"{type(future).__name__} from the communication hook"
        )
    return future
