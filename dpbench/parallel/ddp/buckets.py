"""Buckets: gradients that are averaged together in one collective."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import repeat
from operator import attrgetter, is_
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dpbench.parallel.shm import allocate_group_zeros
from dpbench.parallel.torch_private import copy_all

MEBIBYTE = 1024**2
LARGE_BYTES = 32 * 1024
"""Gradients of this mean size are copied one by one as soon as they are ready, while they are in
the cache. For smaller ones a call for each takes longer than to copy the whole bucket at once."""
_GRADIENT = attrgetter("grad")


class Bucket:
    """Dense gradients of one dtype and device, side by side in one flat tensor.

    On `shm` the flat tensor lies in memory of the group, which is reduced in place.

    Attributes:
        number: 0 for the bucket that is sent first.
        is_last: whether it is sent after all others.
        indices: the parameters' indices in the reducer.
        awaited: indices of the gradients that it waits for: its own, in the last bucket also the
            sparse ones.
        parameters: the parameters; a place is a position in this list.
        place_of: the place of each index.
        as_view: whether `.grad` is to be a view of `flat`.
        nbytes: bytes of the gradients.
        copies_early: whether to copy each gradient as soon as it is ready.
        wire: what is reduced: the gradients and the padding, as real numbers.
        flat: the gradients.
        padding: a zero for each rank behind them, so that a sharded optimizer can divide a bucket
            into equal shards without a copy; in the last bucket the AbortFlag.
        views: each gradient's part of `flat`, in the shape and strides that its parameter had when
            the bucket was made; the same on all ranks.
    """

    def __init__(
        self,
        indices: Sequence[int],
        parameters: Sequence[nn.Parameter],
        group: dist.ProcessGroup,
        *,
        number: int,
        is_last: bool,
        as_view: bool,
    ) -> None:
        """
        Args:
            indices: in `parameters`, which are all of the reducer's.
            group: the ranks.
            number, is_last, as_view: see the attributes.
        """
        self.number, self.is_last = number, is_last
        self.indices, self.awaited = list(indices), list(indices)
        self.place_of = {index: place for place, index in enumerate(self.indices)}
        self.parameters = [parameters[index] for index in self.indices]
        self.nbytes = sum(parameter.nbytes for parameter in self.parameters)
        self.as_view = as_view
        first = self.parameters[0] if self.parameters else parameters[0]
        self.copies_early = first.is_cpu and self.nbytes >= LARGE_BYTES * len(self.indices)
        sizes = [parameter.numel() for parameter in self.parameters]
        padding = dist.get_world_size(group)
        wire = allocate_group_zeros(group, sum(sizes) + padding, first.dtype, first.device)
        self.wire = torch.view_as_real(wire) if wire.is_complex() else wire
        self.flat, self.padding = wire[:-padding], wire[-padding:]
        self.views = [
            part.as_strided(parameter.size(), parameter.stride())
            if _is_dense(parameter)
            else part.view(parameter.shape)
            for part, parameter in zip(torch.split(self.flat, sizes), self.parameters, strict=True)
        ]
        self._strides = list(map(Tensor.stride, self.parameters))
        # What `.grad` becomes. Code outside may give such a tensor other memory, as `module.to`
        # does with a memory format, and must not change `views` by that.
        self._grad_views = [view.detach() for view in self.views] if as_view else []
        self._addresses = list(map(Tensor.data_ptr, self._grad_views))

    def views_in(self, flat: Tensor) -> list[Tensor]:
        """The part of each parameter in another flat tensor, as in `views`."""
        shift = flat.storage_offset() - self.flat.storage_offset()
        return [
            flat.as_strided(view.size(), view.stride(), view.storage_offset() + shift)
            for view in self.views
        ]

    def grad_view(self, place: int) -> Tensor:
        """What `.grad` becomes, as a view."""
        if self._grad_views[place].data_ptr() != self._addresses[place]:
            self._grad_views[place] = self.views[place].detach()
        return self._grad_views[place]

    def grad_views(self) -> list[Tensor]:
        """`grad_view` of all places, at a fraction of the time; empty without `as_view`."""
        if list(map(Tensor.data_ptr, self._grad_views)) != self._addresses:
            self._grad_views = [self.grad_view(place) for place in range(len(self._grad_views))]
        return self._grad_views

    def may_be_view(self, place: int) -> bool:
        """Whether `.grad` may be a view: a gradient has the strides of its parameter."""
        return self.as_view and self.parameters[place].stride() == self._strides[place]

    def may_all_be_views(self) -> bool:
        """`may_be_view` of all places, at a fraction of the time."""
        return list(map(Tensor.stride, self.parameters)) == self._strides


class Reduction:
    """The reduction of one bucket in one backward.

    `pack`, or `copy_early` before it, copies each gradient into the flat tensor, where the average
    replaces it. What `.grad` is until `finalize`, and what that does:

    .grad                                   noted in       finalize
    a view of the flat tensor               (nothing)      nothing: it has the average already
    a tensor of its own                     `_copy_back`   copies the average to it
    older than the last reduction, or None  `_saved`       sets the average, or the old gradient
                                                           where no rank has used the parameter

    Attributes:
        bucket: what it reduces.
        pending: number of parameters whose gradient is not ready.
        scale: what gradients are multiplied by before they are sent; 0 sends zeros.
    """

    def __init__(self, bucket: Bucket, pending: int, scale: float) -> None:
        self.bucket, self.pending, self.scale = bucket, pending, scale
        self._copied_early: set[int] = set()  # places, whose part of the flat tensor is scaled
        self._copy_back: list[tuple[Tensor, Tensor]] = []  # gradients, with their averages
        self._saved: dict[int, Tensor | None] = {}  # values by place, None where there is no .grad

    def copy_early(self, index: int) -> None:
        """Copy a gradient that is ready, ahead of the others."""
        bucket, place = self.bucket, self.bucket.place_of.get(index)
        if place is None:
            return  # sparse
        gradient = bucket.parameters[place].grad
        if gradient is None or gradient.is_sparse:
            return  # `pack` raises torch's error for one that should be dense
        if bucket.as_view and gradient is bucket.grad_view(place):
            return
        torch.mul(gradient.detach(), self.scale, out=bucket.views[place])
        self._copied_early.add(place)
        self._replace(place, gradient)

    def pack(self, used_here: set[int]) -> None:
        """Copy the gradients into the flat tensor, times `scale`; zero where there is none.

        Args:
            used_here: indices of parameters with a gradient since the last reduction. An older
                gradient counts too, but `finalize` restores it if no rank has used the parameter.
        """
        bucket = self.bucket
        if not self.scale:
            bucket.flat.zero_()
            self._saved = dict.fromkeys(range(len(bucket.parameters)))
            return
        grad_views = bucket.grad_views()
        gradients: list[Any] = list(map(_GRADIENT, bucket.parameters))
        # Passes over the list take a fraction of the time of one loop that asks each gradient.
        are_new = used_here.issuperset(bucket.indices)
        are_new = are_new and not any(map(is_, gradients, repeat(None)))
        are_new = are_new and not any(map(is_, gradients, grad_views))
        alike = not bucket.as_view or bucket.may_all_be_views()
        if not are_new or not alike or self._copied_early:
            self._pack_each(gradients, used_here)
            return
        copy_all(bucket.views, gradients)
        if self.scale != 1.0:
            bucket.flat.mul_(self.scale)
        if bucket.as_view:
            for parameter, grad_view in zip(bucket.parameters, grad_views, strict=True):
                parameter.grad = grad_view
        else:
            self._copy_back = list(zip(gradients, bucket.views, strict=True))

    def _pack_each(self, gradients: list[Any], used_here: set[int]) -> None:
        """`pack` where gradients are of several kinds, or some have been copied early."""
        bucket = self.bucket
        targets, sources, unscaled = [], [], []
        for place, (gradient, view) in enumerate(zip(gradients, bucket.views, strict=True)):
            if place in self._copied_early:
                continue
            unscaled.append(view)
            is_view = bucket.as_view and gradient is bucket.grad_view(place)
            if gradient is None:
                view.zero_()
            elif not is_view:
                targets.append(view)
                sources.append(gradient)
            if gradient is None or bucket.indices[place] not in used_here:
                self._saved[place] = gradient.detach().clone() if is_view else gradient
            elif not is_view:
                self._replace(place, gradient)
        copy_all(targets, sources)
        for part in unscaled if self._copied_early else [bucket.flat]:
            part.mul_(self.scale)

    def finalize(self, used: Collection[int]) -> None:
        """Put the averages into `.grad` of the parameters with the indices `used`."""
        bucket = self.bucket
        copy_all([gradient for gradient, _ in self._copy_back], [v for _, v in self._copy_back])
        for place, saved in self._saved.items():
            parameter, view = bucket.parameters[place], bucket.views[place]
            gradient = parameter.grad
            if bucket.indices[place] not in used:
                if saved is None:
                    parameter.grad = None
                elif saved is not gradient:
                    view.copy_(saved)  # `.grad` is this view
            elif bucket.may_be_view(place):
                parameter.grad = bucket.grad_view(place)
            elif gradient is None:
                parameter.grad = torch.empty_like(parameter).copy_(view)
            else:
                gradient.detach().copy_(view)

    def _replace(self, place: int, gradient: Tensor) -> None:
        """Make the gradient a view of the bucket, or note where to copy the average."""
        if self.bucket.may_be_view(place):
            # Now and not at the end, so that the memory of the gradient can be used again.
            self.bucket.parameters[place].grad = self.bucket.grad_view(place)
        else:
            self._copy_back.append((gradient, self.bucket.views[place]))


def _is_dense(tensor: Tensor) -> bool:
    """Whether the tensor's elements fill its memory without gaps or overlap, in any order."""
    if tensor.is_contiguous():
        return True
    # Preserves the strides if and only if they have neither gaps nor overlaps.
    return torch.empty_like(tensor, device="meta").stride() == tensor.stride()


def caps_in_bytes(cap_mb: float | None, caps_mb: Sequence[float] | None) -> tuple[int, ...]:
    """The sizes at which the first, second … bucket is closed; the last holds for all others too.

    By default the first bucket is small, so that communication starts early.

    Raises:
        ValueError: both arguments are given, or a cap is not above zero.
    """
    default = (1.0, 25.0) if cap_mb is None else (cap_mb,)
    caps = default if caps_mb is None else tuple(caps_mb)
    both = cap_mb is not None and caps_mb is not None
    if both or not caps or not all(cap > 0 for cap in caps):
        raise ValueError(
            f"got bucket_cap_mb={cap_mb} and bucket_cap_mb_list={caps_mb}, expected one of them, "
            "with numbers of MiB above 0"
        )
    return tuple(int(cap * MEBIBYTE) for cap in caps)


class BucketOrder:
    """The order in which gradients are expected to become ready, the same on all ranks.

    At first it is the reverse of the parameters', and later, once, that of rank 0's first backward.

    Attributes:
        indices: of all parameters.
        learns: whether the next backward is the first one, and its order is to be taken.
    """

    def __init__(self, count: int, *, learns: bool) -> None:
        self.indices = list(range(count))[::-1]
        self.learns = learns
        self._learned: list[int] = []

    def learn(self, fired: Sequence[int]) -> None:
        """Note the order of the first backward, from the indices of the hooks that fired in it."""
        if not self.learns:
            return
        self.learns = False
        # A gradient that is accumulated several times is ready at the last of them.
        last_first = dict.fromkeys(reversed(fired))
        missing = [index for index in self.indices if index not in last_first]
        self._learned = [*reversed(last_first), *missing]

    def update(self, group: dist.ProcessGroup, device: torch.device) -> bool:
        """Take the order that rank 0 has learned, if that is new; a collective. Returns whether it
        is."""
        if not self._learned:
            return False
        agreed = torch.tensor(self._learned, device=device)
        dist.broadcast(agreed, group=group, group_src=0)
        self.indices, self._learned = agreed.tolist(), []
        return True


def assign_buckets(
    order: Sequence[int], parameters: Sequence[Tensor], caps: Sequence[int]
) -> list[list[int]]:
    """Assign parameters to buckets. A bucket can exceed its cap by its last parameter.

    Args:
        order: indices of the parameters, in the order in which their gradients become ready.
        parameters: all parameters; a bucket holds one dtype and one device.
        caps: in bytes, for the buckets of each dtype and device; see `caps_in_bytes`.

    Returns:
        The indices in each bucket, in the order in which the buckets are filled and reduced.
    """
    closed: list[list[int]] = []
    open_: dict[object, list[int]] = {}
    sizes: Counter[object] = Counter()
    counts: Counter[object] = Counter()
    for index in order:
        parameter = parameters[index]
        key = (parameter.dtype, parameter.device)
        open_.setdefault(key, []).append(index)
        sizes[key] += parameter.nbytes
        if sizes[key] >= caps[min(counts[key], len(caps) - 1)]:
            closed.append(open_.pop(key))
            counts[key] += 1
            sizes[key] = 0
    return closed + list(open_.values())
