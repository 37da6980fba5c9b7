"""Gradients of many parameters in one flat tensor, averaged over the ranks in one collective."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dpbench.parallel.ddp.comm_hooks import Future, GradientBucket, Hook
from dpbench.parallel.ddp.exchange import Exchange
from dpbench.parallel.flat import ALIGNMENT_BYTES, copy_all, packed_bytes, views_in


@dataclass(frozen=True, slots=True)
class BucketCaps:
    """Sizes in bytes at which the first, second … bucket is closed; the last is that of all
    others too. A bucket can exceed its cap by its last parameter."""

    caps: tuple[int, ...]

    @classmethod
    def from_mebibytes(cls, *caps_mb: float) -> BucketCaps:
        """
        Raises:
            ValueError: for none, or one that is not above zero.
        """
        if not caps_mb or not all(_is_positive(cap) for cap in caps_mb):
            raise ValueError(
                f"got {', '.join(map(repr, caps_mb)) or 'nothing'} for the bucket caps, expected "
                "numbers of MiB above 0"
            )
        return cls(tuple(int(cap * 1024**2) for cap in caps_mb))

    @classmethod
    def chosen(cls, cap_mb: float | None, caps_mb: Sequence[float] | None) -> BucketCaps:
        """What was asked for, else a small first bucket, so that communication starts early.

        Raises:
            ValueError: for both, or a cap that is not above zero.
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
        """The cap of a bucket, counted from 0."""
        return self.caps[min(number, len(self.caps) - 1)]


def _is_positive(cap: object) -> bool:
    return isinstance(cap, (int, float)) and not isinstance(cap, bool) and 0 < cap < math.inf


def assign_buckets(
    order: Sequence[int],
    parameters: Sequence[Tensor],
    caps: BucketCaps,
    alone: Collection[int] = (),
) -> list[list[int]]:
    """Which parameters share a bucket.

    Args:
        order: indices of all parameters, those whose gradient is ready first in front.
        parameters: buckets mix neither their dtypes nor their devices.
        caps: for the buckets of each dtype and device.
        alone: indices that get a bucket of their own, as those with sparse gradients do.

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


class Bucket:
    """The flat gradient of some parameters.

    Attributes:
        indices: of the parameters, in the order of the reducer.
        waiting: indices whose gradient of the running backward is not there yet.
        nbytes: bytes of the gradients.
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
            parameters: of one dtype and device where `indices` point.
            exchange: averages the flat gradient.
            rider_elements: length of a further vector that is summed in the same collective.
            aligned: whether gradients may lie apart, each where vector instructions like it; not
                for a comm hook, to which the flat gradient is nothing but the gradients.
        """
        self.indices = list(indices)
        self.parameters = [parameters[index] for index in indices]
        self.waiting: set[int] = set()
        self._exchange = exchange
        first = self.parameters[0]
        item = first.element_size()
        alignment = max(ALIGNMENT_BYTES, item) if aligned else item
        size = packed_bytes(self.parameters, alignment) // item
        self.nbytes = sum(parameter.nbytes for parameter in self.parameters)
        self._wire = exchange.zeros(size + rider_elements, first.dtype, first.device)
        self.flat, self.rider = self._wire[:size], self._wire[size:]
        self.views = views_in(self._wire.view(torch.uint8), self.parameters, alignment)
        self._work: dist.Work | None = None
        self._future: Future[Any] | None = None
        self._absent: list[int] = []
        self._kept: list[tuple[int, Tensor, Tensor | None]] = []
        self._with_graph: list[tuple[Tensor, Tensor]] = []

    def collect(self, scale: float, missing: Collection[int] = ()) -> list[int]:
        """Bring all gradients into the flat tensor, times `scale`; they become views of it.

        Args:
            scale: for all gradients.
            missing: indices of parameters whose gradient, if there is one, is not of this
                backward; it counts, but is put back if no other rank has one.

        Returns:
            The indices of the parameters without a gradient of this backward.
        """
        with torch.no_grad():
            if missing:
                self._keep(missing)
            self._collect(scale)
        without = {self.indices[place] for place in self._absent}
        return [i for i in self.indices if i in without or i in missing]

    def clear(self) -> None:
        """Zeros in the place of gradients, for a rank that has none."""
        self.flat.zero_()
        self._absent = list(range(len(self.parameters)))

    def send(self, *, average: bool, hook: Hook | None, number: int, last: bool) -> None:
        """Start the sum over the ranks, or their mean; `hook` takes the place of the all-reduce."""
        if hook is None:
            self._work = self._exchange.start(self._wire, average=average)
        else:
            bucket = GradientBucket(number, self.flat, self.views, self.parameters, last)
            self._future = hook(bucket)

    def finish(self, keep: Collection[int] = ()) -> None:
        """Wait for the average (on CUDA only the current stream waits).

        Args:
            keep: indices of parameters that no rank has a gradient for: theirs stays what it was.
        """
        self.wait()
        for gradient, view in self._with_graph:
            gradient.detach().copy_(view)
        self._with_graph = []
        for place in self._absent:
            if self.indices[place] not in keep:
                self.parameters[place].grad = self.views[place]
        self._absent = []
        for place, gradient, values in self._kept:
            if self.indices[place] in keep:
                if values is not None:
                    gradient.detach().copy_(values)
                self.parameters[place].grad = gradient
        self._kept = []

    def wait(self) -> None:
        """Until the flat tensor holds the result."""
        if self._work is not None:
            self._work.wait()
            self._work = None
        if self._future is not None:
            result = self._future.wait()
            self._future = None
            reduced = result[0] if isinstance(result, (list, tuple)) else result
            assert isinstance(reduced, Tensor)
            if not reduced.is_set_to(self.flat):
                self.flat.copy_(reduced.reshape(-1))

    def _keep(self, missing: Collection[int]) -> None:
        """Note what the gradients of these parameters are, which the average may overwrite."""
        for place, (index, view) in enumerate(zip(self.indices, self.views, strict=True)):
            gradient = self.parameters[place].grad if index in missing else None
            if gradient is not None:
                _require_dense(gradient)
                values = gradient.detach().clone() if gradient.is_set_to(view) else None
                self._kept.append((place, gradient, values))

    def _collect(self, scale: float) -> None:
        targets: list[Tensor] = []
        sources: list[Tensor] = []
        empty: list[Tensor] = []
        in_place = False
        for place, (parameter, view) in enumerate(zip(self.parameters, self.views, strict=True)):
            gradient = parameter.grad
            if gradient is None:
                empty.append(view)
                self._absent.append(place)
                continue
            _require_dense(gradient)
            if gradient.is_set_to(view):
                in_place = True
                continue
            targets.append(view)
            sources.append(gradient)
            if gradient.requires_grad:
                self._keep_graph(gradient, view)
            else:
                # Now and not in the end, so that the memory of the gradient can be used again.
                parameter.grad = view
        if empty:
            torch._foreach_zero_(empty)
        if scale == 1.0 or in_place or self._views_are_small():
            copy_all(targets, sources)
            if scale != 1.0:
                self.flat.mul_(scale)
            return
        for view, gradient in zip(targets, sources, strict=True):
            torch.mul(gradient, scale, out=view)

    def _keep_graph(self, gradient: Tensor, view: Tensor) -> None:
        if not self._with_graph:
            warnings.warn(
                "Using DistributedDataParallel with create_graph=True: gradients are averaged, "
                "but what a second backward adds to them is not",
                stacklevel=2,
            )
        self._with_graph.append((gradient, view))

    def _views_are_small(self) -> bool:
        """Whether a call per gradient costs more than a second pass over the flat tensor."""
        return self.nbytes < 32 * 1024 * len(self.views)


class LocalBucket:
    """As Bucket, for a group of one rank: its gradients are the average, and stay where they are.

    The same attributes and methods.
    """

    nbytes = 0

    def __init__(self, indices: Sequence[int]) -> None:
        self.indices = list(indices)
        self.waiting: set[int] = set()

    def collect(self, scale: float, missing: Collection[int] = ()) -> list[int]:
        return []

    def clear(self) -> None:
        """There is no flat gradient."""

    def send(self, *, average: bool, hook: Hook | None, number: int, last: bool) -> None:
        """To nobody."""

    def wait(self) -> None:
        """For nobody."""

    def finish(self, keep: Collection[int] = ()) -> None:
        """The gradients are what they were."""


def _require_dense(gradient: Tensor) -> None:
    if gradient.is_sparse:
        raise RuntimeError(
            "got a sparse gradient for a parameter that is not the weight of an nn.Embedding or "
            "nn.EmbeddingBag with sparse=True, from which DistributedDataParallel expects one"
        )
