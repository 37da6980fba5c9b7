"""Buckets: gradients that are averaged together in one collective."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import repeat
from operator import attrgetter, is_

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

    On `shm` the flat tensor lies in memory of the group, which is reduced in place. Communication
    hooks get the bucket in place of torch's GradBucket, which Python cannot construct; it has the
    same methods.

    In each backward that reduces, `start` comes first. `pack`, or `copy_early` before it, copies
    the gradients into the flat tensor, where the average replaces them. Where `.grad` is to be a
    view of the flat tensor, it becomes one now; else `finalize` copies the average to it. A `.grad`
    that is None, or older than the last reduction, is saved, and comes back where no rank has used
    the parameter. A rank that has no gradients to send calls `pack_zeros` instead.

    Attributes:
        indices: the parameters' indices in the reducer; a place is a position in this list.
        has_large_gradients: whether `copy_early` is faster than to leave all to `pack`.
        flat: the gradients.
        padding: a zero for each rank behind them, so that a sharded optimizer can divide a bucket
            into equal shards without a copy; in the last bucket the abort flag.
        wire: what is reduced: the gradients and the padding, as real numbers.
        views: each gradient's part of `flat`, in the shape and strides that its parameter had when
            the bucket was made; the same on all ranks.
        awaited: how many gradients it waits for: its own, in the last bucket also the sparse ones.
        pending: how many of them are not ready in the running backward.
    """

    def __init__(
        self,
        number: int,
        indices: Sequence[int],
        parameters: Sequence[nn.Parameter],
        group: dist.ProcessGroup,
        *,
        is_last: bool,
        as_view: bool,
    ) -> None:
        """
        Args:
            number: 0 for the bucket that is sent first.
            indices: in `parameters`, which are all of the reducer's.
            group: the ranks.
            is_last: whether no other bucket is sent after it.
            as_view: whether `.grad` is to be a view of `flat`.
        """
        self._number, self._is_last, self._as_view = number, is_last, as_view
        self.indices = list(indices)
        self.awaited = len(self.indices)
        self._parameters = [parameters[index] for index in self.indices]
        first = self._parameters[0] if self._parameters else parameters[0]
        sizes = [parameter.numel() for parameter in self._parameters]
        padding = dist.get_world_size(group)
        wire = allocate_group_zeros(group, sum(sizes) + padding, first.dtype, first.device)
        self.wire = torch.view_as_real(wire) if wire.is_complex() else wire
        self.flat, self.padding = wire[:-padding], wire[-padding:]
        large = LARGE_BYTES * len(self.indices)
        self.has_large_gradients = first.is_cpu and self.flat.nbytes >= large
        self.views = [
            part.as_strided(parameter.size(), parameter.stride())
            if torch.ops.aten.is_non_overlapping_and_dense(parameter)
            else part.view(parameter.shape)
            for part, parameter in zip(torch.split(self.flat, sizes), self._parameters, strict=True)
        ]
        self._strides = list(map(Tensor.stride, self._parameters))
        # What `.grad` becomes. Code outside may give such a tensor other memory, as `module.to`
        # does with a memory format, and must not change `views` by that.
        self._user_views = [view.detach() for view in self.views]
        self._addresses = list(map(Tensor.data_ptr, self.views))
        self.start(pending=0, scale=1.0)

    def index(self) -> int:
        """0 for the bucket that is sent first."""
        return self._number

    def parameters(self) -> list[nn.Parameter]:
        """The parameters, in the order of the gradients."""
        return self._parameters

    def is_last(self) -> bool:
        """Whether no other bucket is sent after it."""
        return self._is_last

    def buffer(self) -> Tensor:
        """The flat gradient of this rank, not divided by the number of ranks, for a hook."""
        return self._buffer

    def gradients(self) -> list[Tensor]:
        """Views of the buffer in the shapes of the parameters."""
        return self.views if self._buffer is self.flat else self.views_in(self._buffer)

    def set_buffer(self, buffer: Tensor) -> None:
        """Replace what the hook of this backward sees, for example by a tensor of another dtype."""
        self._buffer = buffer

    def views_in(self, flat: Tensor) -> list[Tensor]:
        """The part of each parameter in another flat tensor, as in `views`."""
        shift = flat.storage_offset() - self.flat.storage_offset()
        return [
            flat.as_strided(view.size(), view.stride(), view.storage_offset() + shift)
            for view in self.views
        ]

    def start(self, *, pending: int, scale: float) -> None:
        """Prepare for the next backward, whose gradients are multiplied by `scale`."""
        self.pending, self._scale, self._buffer = pending, scale, self.flat
        self._copied_early: set[int] = set()  # places
        self._saved: dict[int, Tensor | None] = {}  # gradients by place, None where there is none
        # A gradient has the strides of its parameter.
        self._gives_views = (
            self._as_view and list(map(Tensor.stride, self._parameters)) == self._strides
        )
        if self._as_view and list(map(Tensor.data_ptr, self._user_views)) != self._addresses:
            self._user_views = [
                mine if mine.data_ptr() == view.data_ptr() else view.detach()
                for mine, view in zip(self._user_views, self.views, strict=True)
            ]

    def copy_early(self, place: int) -> None:
        """Pack a large gradient that is ready, ahead of the others."""
        self._pack_one(place, is_old=False)
        self._copied_early.add(place)

    def pack(self, used_here: set[int]) -> None:
        """Copy the gradients into the flat tensor, times the scale; zero where there is none.

        Args:
            used_here: indices of parameters with a gradient since the last reduction. An older
                gradient counts too, but `finalize` restores it if no rank has used the parameter.
        """
        if self.has_large_gradients:
            for place, index in enumerate(self.indices):
                if place not in self._copied_early:
                    self._pack_one(place, is_old=index not in used_here)
            return
        gradients = list(map(_GRADIENT, self._parameters))
        # Passes over the lists take a fraction of the time of a loop.
        if (
            used_here.issuperset(self.indices)
            and not any(map(is_, gradients, repeat(None)))
            and not any(map(is_, gradients, self._user_views))
        ):
            copy_all(self.views, gradients)
            if self._gives_views:
                for parameter, user_view in zip(self._parameters, self._user_views, strict=True):
                    parameter.grad = user_view
        else:
            for place, index in enumerate(self.indices):
                gradients[place] = self._replace_gradient(place, is_old=index not in used_here)
            copied = [place for place, gradient in enumerate(gradients) if gradient is not None]
            copy_all([self.views[n] for n in copied], [gradients[n] for n in copied])
        if self._scale != 1.0:
            self.flat.mul_(self._scale)

    def _pack_one(self, place: int, *, is_old: bool) -> None:
        gradient, view = self._replace_gradient(place, is_old=is_old), self.views[place]
        if self._scale != 1.0:
            torch.mul(view if gradient is None else gradient.detach(), self._scale, out=view)
        elif gradient is not None:  # takes three quarters of the time
            view.copy_(gradient.detach())

    def _replace_gradient(self, place: int, *, is_old: bool) -> Tensor | None:
        """Save a gradient that `finalize` may restore; let a view replace any other.

        Now and not at the end, so that the memory of gradients can be used again.

        Returns:
            The gradient, to be copied to its place; None where its values are there already.
        """
        parameter, user_view = self._parameters[place], self._user_views[place]
        gradient = parameter.grad
        if gradient is None or is_old:
            self._saved[place] = user_view.clone() if gradient is user_view else gradient
        elif self._gives_views:
            parameter.grad = user_view
        if gradient is None:
            self.views[place].zero_()
        return None if gradient is user_view else gradient

    def pack_zeros(self) -> None:
        """Fill the flat tensor with zeros, on a rank whose backward failed or that has no data."""
        self.start(pending=0, scale=1.0)
        self.flat.zero_()
        self._saved = dict.fromkeys(range(len(self.indices)))

    def finalize(self, used: Collection[int]) -> None:
        """Put the averages into `.grad` of the parameters with the indices `used`."""
        unused = set()
        for place, saved in self._saved.items():
            parameter = self._parameters[place]
            if self.indices[place] not in used:
                unused.add(place)
                parameter.grad = saved
            elif self._gives_views:
                parameter.grad = self._user_views[place]
            elif parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
        self._saved = {}
        if not self._gives_views:
            gradients, views = list(map(_GRADIENT, self._parameters)), self.views
            if unused or any(map(is_, gradients, repeat(None))):
                averaged = [n for n, g in enumerate(gradients) if g is not None and n not in unused]
                gradients, views = [gradients[n] for n in averaged], [views[n] for n in averaged]
            copy_all(gradients, views)

    def set_abort_flag(self) -> None:
        """Tell all ranks, when this last bucket is sent, that gradients are missing here."""
        self.padding.fill_(1)

    def take_abort_flag(self) -> bool:
        """Whether any rank has set the flag in this last bucket, which has been reduced; resets it.

        On CUDA it is always False, as reading it would wait for the device; there the timeout of
        the collective ends the wait, as with torch's class.
        """
        if not self.padding.is_cpu or not self.padding.any():
            return False
        self.padding.zero_()
        return True


def caps_in_bytes(cap_mb: float | None, caps_mb: Sequence[float] | None) -> tuple[int, ...]:
    """The sizes at which the first, second … bucket is closed; the last holds for all others too.

    By default the first bucket is small, so that communication starts early.

    Raises:
        ValueError: both arguments are given, or a cap is not above zero.
    """
    default = (1.0, 25.0) if cap_mb is None else (cap_mb,)
    caps = default if caps_mb is None else tuple(caps_mb)
    is_ambiguous = cap_mb is not None and caps_mb is not None
    if is_ambiguous or not caps or not all(0 < cap < math.inf for cap in caps):
        raise ValueError(
            f"got bucket_cap_mb={cap_mb} and bucket_cap_mb_list={caps_mb}, expected one of them, "
            "with numbers of MiB above 0"
        )
    return tuple(int(cap * MEBIBYTE) for cap in caps)


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
