"""Buckets: the gradients of many parameters in one flat tensor, averaged in one collective."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import attrgetter, is_not
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dpbench.parallel.ddp.comm_hooks import Exchange, Future, GradientBucket, Hook
from dpbench.parallel.ddp.holders import is_held_elsewhere, reducers, views_of
from dpbench.parallel.flat import ALIGNMENT_BYTES, copy_all, packed_bytes, views_in

_GRADIENT, _DATA = attrgetter("grad"), attrgetter("data")
_IS_SPARSE, _REQUIRES_GRAD = attrgetter("is_sparse"), attrgetter("requires_grad")

LARGE_BYTES = 32 * 1024
"""Gradients of this mean size are copied when they come: a call for each costs less than to read it
again when it has left the cache, and the next one gets the memory that it frees, still cached."""


@dataclass(frozen=True, slots=True)
class BucketCaps:
    """Sizes in bytes at which the first, second … bucket is closed; the last size also holds for
    all further buckets. A bucket can exceed its cap by its last parameter."""

    caps: tuple[int, ...]

    @classmethod
    def from_mebibytes(cls, *caps_mb: float) -> BucketCaps:
        """
        Raises:
            ValueError: there is no cap, or one is not above zero.
        """
        if not caps_mb or not all(_is_positive(cap) for cap in caps_mb):
            raise ValueError(
                f"got {', '.join(map(repr, caps_mb)) or 'nothing'} for the bucket caps, expected "
                "numbers of MiB above 0"
            )
        return cls(tuple(int(cap * 1024**2) for cap in caps_mb))

    @classmethod
    def chosen(cls, cap_mb: float | None, caps_mb: Sequence[float] | None) -> BucketCaps:
        """The caps that were asked for; by default a small first bucket, so that communication
        starts early.

        Raises:
            ValueError: both arguments are given, or a cap is not above zero.
        """
        if cap_mb is not None and caps_mb is not None:
            raise ValueError(
                f"got bucket_cap_mb={cap_mb} and bucket_cap_mb_list={list(caps_mb)}, expected one"
            )
        if isinstance(caps_mb, (list, tuple)):
            return cls.from_mebibytes(*caps_mb)
        if caps_mb is not None:
            raise TypeError(f"got bucket_cap_mb_list={caps_mb!r}, expected a list of MiB")
        return cls.from_mebibytes(*((1.0, 25.0) if cap_mb is None else (cap_mb,)))

    def of(self, number: int) -> int:
        """The cap of bucket `number`, counted from 0."""
        return self.caps[min(number, len(self.caps) - 1)]


def _is_positive(cap: object) -> bool:
    return isinstance(cap, (int, float)) and not isinstance(cap, bool) and 0 < cap < math.inf


def assign_buckets(
    order: Sequence[int],
    parameters: Sequence[Tensor],
    caps: BucketCaps,
    alone: Collection[int] = (),
) -> list[list[int]]:
    """Assign parameters to buckets.

    Args:
        order: indices of all parameters, in the order in which their gradients become ready.
        parameters: all parameters; a bucket holds one dtype and one device.
        caps: for the buckets of each dtype and device.
        alone: indices that get a bucket of their own, such as those with sparse gradients.

    Returns:
        The indices in each bucket, in the order in which the buckets are filled and reduced.
    """
    closed: list[list[int]] = []
    open_: dict[object, list[int]] = {}
    sizes: dict[object, int] = {}
    counts: dict[object, int] = {}
    for index in order:
        if index in alone:
            closed.append([index])
            continue
        parameter = parameters[index]
        key = (parameter.dtype, parameter.device)
        open_.setdefault(key, []).append(index)
        sizes[key] = sizes.get(key, 0) + parameter.nbytes
        if sizes[key] >= caps.of(counts.get(key, 0)):
            closed.append(open_.pop(key))
            del sizes[key]
            counts[key] = counts.get(key, 0) + 1
    return closed + list(open_.values())


def last_of_each(buckets: Iterable[Collection[int]], order: Sequence[int]) -> set[int]:
    """The index in each bucket whose gradient came last; none where no gradient came.

    Args:
        buckets: the indices in each bucket.
        order: indices in the order in which their gradients came.
    """
    place = {index: number for number, index in enumerate(order)}
    came = ([index for index in indices if index in place] for indices in buckets)
    return {max(indices, key=place.__getitem__) for indices in came if indices}


class Bucket:
    """The flat gradient of some parameters.

    A gradient that only its parameter refers to becomes an alias of its part of the flat tensor, so
    that nothing is copied back. A gradient that others refer to stays where it is, and the average
    is copied into it.

    Attributes:
        indices: the parameters' indices in the reducer.
        waiting: indices whose gradient has not arrived yet in the running backward.
        nbytes: bytes of the gradients.
        at_once: by the index of a large gradient, which places to copy when it has come; empty if
            most gradients are small, or not on the CPU.
    """

    def __init__(
        self,
        indices: Sequence[int],
        parameters: Sequence[nn.Parameter],
        exchange: Exchange,
        *,
        rider_elements: int = 0,
        aligned: bool = True,
    ) -> None:
        """
        Args:
            indices: which of `parameters` are in the bucket.
            parameters: all parameters; those at `indices` have one dtype and device.
            exchange: averages the flat gradient.
            rider_elements: length of a further vector that is summed in the same collective.
            aligned: whether to pad so that each gradient starts at an aligned address; False for a
                comm hook, which expects the flat tensor to contain nothing but the gradients.
        """
        self.indices = list(indices)
        self.parameters = [parameters[index] for index in indices]
        self.waiting: set[int] = set()
        self._exchange = exchange
        first = self.parameters[0]
        item = first.element_size()
        alignment = max(ALIGNMENT_BYTES, item) if aligned else item
        self._alignment = alignment
        self._size = packed_bytes(self.parameters, alignment) // item
        self.nbytes = sum(parameter.nbytes for parameter in self.parameters)
        self._lay_out(exchange.zeros(self._size + rider_elements, first.dtype, first.device))
        self._work: dist.Work | None = None
        self._future: Future[Any] | None = None
        self._absent: list[int] = []
        self._kept: list[tuple[int, Tensor, Tensor | None]] = []
        # Positions whose gradients are not aliases; those in `_shared` never become one.
        self._apart: set[int] = set()
        self._shared: set[int] = set()
        self._changes_seen = 0
        # Whether no parameter had a gradient at the forward.
        self._was_empty = False
        self._to_write: list[tuple[Tensor, Tensor]] = []
        self._are_large = self.nbytes >= LARGE_BYTES * len(self.parameters)
        self.at_once = self._runs_to_large() if first.device.type == "cpu" else {}
        # Positions of the gradients that `collect_at_once` has copied, times the scale.
        self._taken: set[int] = set()
        self._taken_versions: list[int] = []

    def _lay_out(self, wire: Tensor) -> None:
        """Place the gradients in this memory from now on."""
        self._wire = wire
        self.flat, self.rider = wire[: self._size], wire[self._size :]
        # Never handed out, so that users' changes (`p.grad.data = …`) cannot move them.
        self.views = views_in(wire.view(torch.uint8), self.parameters, self._alignment)
        self._storage = wire.untyped_storage()
        self._own_views = views_of(self._storage)

    def arm(self) -> None:
        """Prepare for a forward whose backward fills the bucket."""
        if self._changes_seen != reducers.changes:
            self._changes_seen = reducers.changes
            places = enumerate(self.parameters)
            self._shared = {place for place, p in places if reducers.share(p)}
        self._apart = set(self._shared)
        self._taken = set()
        gradients = list(map(_GRADIENT, self.parameters))
        self._was_empty = not any(map(is_not, gradients, repeat(None)))
        if self._was_empty:
            return
        for place, view in enumerate(self.views):
            if gradients[place] is None:
                continue
            if gradients[place].is_set_to(view):
                if place in self._shared:
                    gradients[place].data = view.clone()
            elif is_held_elsewhere(gradients, place):
                self._apart.add(place)

    def take_in(self, index: int) -> None:
        """Make the gradient of a parameter an alias of its part of the bucket; it stays the same
        object."""
        place = self.indices.index(index)
        gradient, view = self.parameters[place].grad, self.views[place]
        assert gradient is not None
        view.copy_(gradient)
        gradient.data = view

    def lent(self) -> list[int]:
        """Indices of the parameters whose gradients alias the bucket."""
        places = zip(self.indices, self.parameters, self.views, strict=True)
        return [i for i, p, view in places if p.grad is not None and p.grad.is_set_to(view)]

    def collect_at_once(self, index: int, scale: float, *, all_are_new: bool) -> None:
        """Collect a large gradient that has come, and small ones, ahead of the others.

        Args:
            index: one of `at_once`.
            scale: as for `collect`, which must get the same.
            all_are_new: whether no parameter had a gradient when the backward began, so that
                whatever has one now is complete.
        """
        for place in self.at_once[index]:
            gradient, other = self.parameters[place].grad, self.indices[place]
            has_come = all_are_new or (self._was_empty and other not in self.waiting)
            if (
                gradient is None
                or not (has_come or other == index)
                or place in self._apart
                or gradient.is_sparse
                or gradient.requires_grad
                or gradient.is_set_to(self.views[place])
            ):
                continue
            if not self._taken:
                with torch.no_grad():
                    self._leave_to_others(len(self.lent()))
            torch.mul(gradient, scale, out=self.views[place])
            self._taken.add(place)
            self._hand_out(place, gradient)

    def collect(self, scale: float, missing: Collection[int] = ()) -> list[int]:
        """Bring all gradients into the flat tensor, times `scale`; they become views of it.

        Args:
            scale: for all gradients.
            missing: indices of parameters that got no gradient in this backward. An older gradient
                counts, but is restored if no other rank has one.

        Returns:
            The indices of the parameters without a gradient from this backward.
        """
        with torch.no_grad():
            if missing:
                self._keep(missing)
            self._collect(scale)
        # A user may change a gradient between `collect_at_once` and now.
        self._taken_versions = self._versions_now() if self._taken else []
        if not (self._absent or missing):
            return []
        without = {self.indices[place] for place in self._absent}
        return [i for i in self.indices if i in without or i in missing]

    def came_late(self) -> list[int]:
        """The indices to whose gradient something was added since it was collected; [] if others
        refer to some, to which the average is yet to be copied."""
        versions = self._versions_now()
        if self._to_write or not any(versions):
            return []
        before = self._taken_versions or repeat(0)  # a new alias begins at 0
        return [
            i for i, now, then in zip(self.indices, versions, before, strict=False) if now != then
        ]

    def _versions_now(self) -> list[int]:
        gradients = map(_GRADIENT, self.parameters)
        return [0 if gradient is None else gradient._version for gradient in gradients]

    def clear(self) -> None:
        """Set the flat gradient to zero, for a rank that has no data."""
        self._leave_to_others(len(self.lent()))
        self.flat.zero_()
        self._absent = list(range(len(self.parameters)))

    def send(self, *, average: bool, hook: Hook | None, number: int, last: bool) -> None:
        """Start the sum over the ranks, or the mean; `hook` replaces the all-reduce."""
        if hook is None:
            self._work = self._exchange.start(self._wire, average=average)
        else:
            bucket = GradientBucket(number, self.flat, self.views, self.parameters, last)
            self._future = hook(bucket)

    def finish(self, keep: Collection[int] = ()) -> None:
        """Wait for the average (on CUDA only the current stream waits).

        Args:
            keep: indices of parameters without a gradient on any rank; their `.grad` stays
                unchanged.
        """
        self.wait()
        if self._to_write:
            with torch.no_grad():
                for gradient, view in self._to_write:
                    gradient.copy_(view)
            self._to_write = []
        for place in self._absent:
            if self.indices[place] not in keep:
                view = self.views[place]
                shared = place in self._shared
                self.parameters[place].grad = view.clone() if shared else view.data
        self._absent = []
        for place, gradient, values in self._kept:
            if self.indices[place] in keep:
                if values is not None:
                    gradient.detach().copy_(values)
                self.parameters[place].grad = gradient
        self._kept = []

    def wait(self) -> None:
        """Wait until the flat tensor holds the result."""
        if self._work is not None:
            self._work.wait()
            self._work = None
        if self._future is not None:
            result = self._future.wait()
            self._future = None
            reduced = result[0] if isinstance(result, (list, tuple)) else result
            if not isinstance(reduced, Tensor) or reduced.numel() != self.flat.numel():
                got = tuple(reduced.shape) if isinstance(reduced, Tensor) else repr(reduced)
                raise RuntimeError(
                    f"the communication hook's future holds {got}, expected a tensor with the "
                    f"{self.flat.numel()} elements of the bucket's buffer"
                )
            if not reduced.is_set_to(self.flat):
                self.flat.copy_(reduced.reshape(-1))

    def _keep(self, missing: Collection[int]) -> None:
        """Save the gradients of these parameters, since the average may overwrite them."""
        for place, (index, view) in enumerate(zip(self.indices, self.views, strict=True)):
            gradient = self.parameters[place].grad if index in missing else None
            if gradient is not None:
                _require_dense(gradient)
                values = gradient.detach().clone() if gradient.is_set_to(view) else None
                self._kept.append((place, gradient, values))

    def _collect(self, scale: float) -> None:
        gradients = list(map(_GRADIENT, self.parameters))
        if self._are_all_new(gradients):
            self._collect_new(gradients, scale)
            return
        moving: list[int] = []
        in_place: list[int] = []
        for place, (gradient, view) in enumerate(zip(gradients, self.views, strict=True)):
            if gradient is None:
                self._absent.append(place)
                continue
            _require_dense(gradient)
            if gradient.is_set_to(view):
                in_place.append(place)
            else:
                moving.append(place)
        if moving or self._absent:
            self._leave_to_others(len(in_place))
        if self._absent:
            torch._foreach_zero_([self.views[place] for place in self._absent])
        targets = [self.views[place] for place in moving]
        sources = [gradients[place] for place in moving]
        for place in moving:
            self._hand_out(place, gradients[place])
        unscaled = [self.views[place] for place in in_place if place not in self._taken]
        self._fill(targets, sources, scale, unscaled)

    def _runs_to_large(self) -> dict[int, range]:
        """The positions up to each large gradient, from the one before, by its index."""
        runs: dict[int, range] = {}
        start = 0
        for place, parameter in enumerate(self.parameters):
            if self._are_large and parameter.nbytes >= LARGE_BYTES:
                runs[self.indices[place]] = range(start, place + 1)
                start = place + 1
        return runs

    def _are_all_new(self, gradients: Sequence[Tensor | None]) -> bool:
        """Whether all gradients have come, and none was there before.

        A question for each list and not for each gradient, which takes a third of the time.
        """
        return (
            self._was_empty
            and not self._apart
            and not self._taken
            and all(map(is_not, gradients, repeat(None)))
            and not any(map(_IS_SPARSE, gradients))
            and not any(map(_REQUIRES_GRAD, gradients))
        )

    def _collect_new(self, gradients: Sequence[Tensor], scale: float) -> None:
        self._leave_to_others(0)
        self._fill(self.views, gradients, scale)
        for parameter, alias in zip(self.parameters, map(_DATA, self.views), strict=True):
            parameter.grad = alias

    def _fill(
        self,
        targets: Sequence[Tensor],
        sources: Sequence[Tensor],
        scale: float,
        unscaled: list[Tensor] | None = None,
    ) -> None:
        """Copy gradients to their places, and multiply all gradients by `scale`.

        Args:
            targets, sources: the places, and the gradients that are not there yet.
            scale: for all gradients.
            unscaled: the places of gradients that are there, but not multiplied yet.
        """
        if scale == 1.0:
            copy_all(targets, sources)
            return
        if not self._taken and (unscaled or not self._are_large):
            copy_all(targets, sources)
            self.flat.mul_(scale)
            return
        if unscaled:
            torch._foreach_mul_(unscaled, scale)
        for view, gradient in zip(targets, sources, strict=True):
            torch.mul(gradient, scale, out=view)

    def _hand_out(self, place: int, gradient: Tensor) -> None:
        """Make the parameter's gradient an alias of the bucket, or copy the average into it."""
        if gradient.requires_grad and not self._to_write:
            warnings.warn(
                "Using DistributedDataParallel with create_graph=True: gradients are averaged, "
                "but what a second backward adds to them is not",
                stacklevel=2,
            )
        if gradient.requires_grad or place in self._apart:
            self._to_write.append((gradient.detach(), self.views[place]))
        else:
            # Done now and not at the end, so that the gradient's memory can be reused.
            self.parameters[place].grad = self.views[place].data

    def _leave_to_others(self, in_place: int) -> None:
        """Allocate other memory if gradients in this one are still referenced, as it will be
        overwritten.

        An example are the gradients of another loss, kept as `[p.grad for p in parameters]`.

        Args:
            in_place: how many gradients of the parameters lie in this memory.
        """
        if views_of(self._storage) == self._own_views + in_place:
            return
        lent = self.lent()
        # Not where memory is shared: allocating is collective, and the others do not.
        wire = torch.zeros_like(self._wire)
        wire[self._size :].copy_(self.rider)
        self._lay_out(wire)
        for index in lent:
            self.take_in(index)


def _require_dense(gradient: Tensor) -> None:
    if gradient.is_sparse:
        raise RuntimeError(
            "got a sparse gradient for a parameter that is not the weight of an nn.Embedding or "
            "nn.EmbeddingBag with sparse=True, from which DistributedDataParallel expects one"
        )
