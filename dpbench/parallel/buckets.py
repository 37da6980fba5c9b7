"""Gradients of many parameters in one flat tensor, averaged over the ranks in one collective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class BucketCaps:
    """Sizes in bytes at which a bucket is closed; it can exceed its cap by its last parameter."""

    first: int
    others: int

    @classmethod
    def from_mebibytes(cls, first_mb: float, others_mb: float) -> BucketCaps:
        """
        Raises:
            ValueError: for a cap that is not above zero.
        """
        for name, cap in (("first_bucket_cap_mb", first_mb), ("bucket_cap_mb", others_mb)):
            if not cap > 0:
                raise ValueError(f"got {name}={cap}, expected a number of MiB above 0")
        return cls(int(first_mb * 1024**2), int(others_mb * 1024**2))


def assign_buckets(
    order: Sequence[int], parameters: Sequence[Tensor], caps: BucketCaps
) -> list[list[int]]:
    """Which parameters share a bucket.

    Args:
        order: indices of all parameters, those whose gradient is ready first in front.
        parameters: buckets mix neither their dtypes nor their devices.
        caps: the first bucket of a dtype and device is small, so that communication starts early.

    Returns:
        The indices in each bucket, in the order in which the buckets are filled and reduced.
    """
    closed: list[list[int]] = []
    open_: dict[object, list[int]] = {}
    sizes: dict[object, int] = {}
    begun: set[object] = set()
    for index in order:
        parameter = parameters[index]
        key = (parameter.dtype, parameter.device)
        open_.setdefault(key, []).append(index)
        sizes[key] = sizes.get(key, 0) + parameter.nbytes
        if sizes[key] >= (caps.others if key in begun else caps.first):
            closed.append(open_.pop(key))
            del sizes[key]
            begun.add(key)
    return closed + list(open_.values())


class Bucket:
    """The flat gradient of some parameters.

    Attributes:
        pending: parameters whose gradient of the running backward is not there yet.
        nbytes: the size of the flat gradient.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], group: dist.ProcessGroup) -> None:
        self.parameters = list(parameters)
        self.pending = len(self.parameters)
        first = self.parameters[0]
        size = sum(parameter.numel() for parameter in self.parameters)
        self._flat = torch.zeros(size, dtype=first.dtype, device=first.device)
        self._views = _views(self._flat, self.parameters)
        self._group = group
        self._scale = 1 / dist.get_world_size(group)
        # nccl divides inside the collective; elsewhere the division is part of the copy.
        backends = dist.get_backend_config(group)
        self._averages = first.device.type == "cuda" and "cuda:nccl" in backends
        self._work: dist.Work | None = None
        self._replaced: list[tuple[nn.Parameter, Tensor]] = []

    @property
    def nbytes(self) -> int:
        return self._flat.nbytes

    def launch(self) -> None:
        """Start averaging the parameters' gradients; all of them must be there."""
        with torch.no_grad():
            self._collect()
        flat = torch.view_as_real(self._flat) if self._flat.is_complex() else self._flat
        op = dist.ReduceOp.AVG if self._averages else dist.ReduceOp.SUM
        self._work = dist.all_reduce(flat, op=op, group=self._group, async_op=True)

    def finish(self) -> None:
        """Wait for the average (on CUDA only the current stream waits) and make it the gradient."""
        assert self._work is not None
        self._work.wait()
        self._work = None
        for parameter, view in self._replaced:
            parameter.grad = view
        self._replaced = []

    def _collect(self) -> None:
        """Bring all gradients into the flat tensor, scaled unless the collective averages."""
        targets: list[Tensor] = []
        sources: list[Tensor] = []
        for parameter, view in zip(self.parameters, self._views, strict=True):
            gradient = parameter.grad
            if gradient is not None and gradient.is_sparse:
                raise RuntimeError("DistributedDataParallel does not reduce sparse gradients")
            if gradient is not None and gradient.is_set_to(view):
                continue
            self._replaced.append((parameter, view))
            if gradient is None:  # autograd reached the parameter without a gradient
                view.zero_()
            else:
                targets.append(view)
                sources.append(gradient)
        if self._averages or len(targets) < len(self._views) or self._views_are_small():
            if targets:
                # One call for all of them; underscored, but torch's documented foreach family.
                torch._foreach_copy_(targets, sources)
            if not self._averages:
                self._flat.mul_(self._scale)
            return
        for view, gradient in zip(targets, sources, strict=True):
            torch.mul(gradient, self._scale, out=view)

    def _views_are_small(self) -> bool:
        """Whether a call per gradient costs more than a second pass over the flat tensor."""
        return self._flat.nbytes < 32 * 1024 * len(self._views)


def _views(flat: Tensor, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """A piece of `flat` for each parameter, in its memory layout (channels last, for example)."""
    views = []
    offset = 0
    for parameter in parameters:
        # Preserves the strides if, and only if, they cover the memory without gaps or overlap.
        strides = torch.empty_like(parameter, device="meta").stride()
        views.append(flat.as_strided(parameter.size(), strides, offset))
        offset += parameter.numel()
    return views
