"""Where the parameters of a bucket lie in one flat tensor, and which part of it each rank steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dpbench.parallel.shm import zeros
from dpbench.parallel.torch_private import copy_all

# Their names until torch 2.10, which later versions deprecate.
all_gather: Any = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter: Any = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


@dataclass(frozen=True, kw_only=True, slots=True)
class ParameterPlace:
    """A parameter's elements in the flat tensor of its bucket.

    Attributes:
        index: the parameter's index in the optimizer.
        begin, end: where it begins and ends, in elements.
        size, stride: of the parameter, which covers these elements without gaps.
    """

    index: int
    begin: int
    end: int
    size: tuple[int, ...]
    stride: tuple[int, ...]

    def view(self, flat: Tensor) -> Tensor:
        """The parameter's view of a flat tensor of any dtype."""
        return flat[self.begin : self.end].as_strided(self.size, self.stride)

    def part(self, whole: Tensor, begin: int, end: int) -> Tensor:
        """The elements of a tensor like the parameter that lie here in the flat tensor, 1-D."""
        if whole.stride() != self.stride:
            whole = torch.empty_strided(
                self.size, self.stride, dtype=whole.dtype, device=whole.device
            ).copy_(whole)
        flat = whole.as_strided((self.end - self.begin,), (1,))
        return flat[begin - self.begin : end - self.begin]


@dataclass(frozen=True, kw_only=True, slots=True)
class BucketLayout:
    """One bucket of the wrapper; equal layouts have their parameters at the same places."""

    places: tuple[ParameterPlace, ...]
    numel: int

    @classmethod
    def of(cls, indices: Sequence[int], buffer: Tensor, views: Sequence[Tensor]) -> BucketLayout:
        """The layout of a bucket's buffer with these views for the parameters."""
        start = int(buffer.storage_offset())
        places = [
            ParameterPlace(
                index=index,
                begin=int(view.storage_offset()) - start,
                end=int(view.storage_offset()) - start + view.numel(),
                size=tuple(view.size()),
                stride=view.stride(),
            )
            for index, view in zip(indices, views, strict=True)
        ]
        return cls(places=tuple(places), numel=buffer.numel())

    def share(self, rank: int, size: int) -> tuple[int, int]:
        """Where the share of one of `size` ranks begins and ends; the last may be shorter."""
        length = -(-self.numel // size)
        return min(rank * length, self.numel), min((rank + 1) * length, self.numel)


class BucketShare:
    """The parameters of a bucket in one flat tensor, and this rank's part of it.

    Attributes:
        layout: of the bucket.
        begin, end: where this rank's part begins and ends, in elements.
        values: all parameters, padded so that all parts have the same length.
        gradient: this rank's part of the average gradient.
        parts: where the part of each parameter in this share begins and ends, by its index.
    """

    def __init__(
        self, layout: BucketLayout, parameters: Sequence[nn.Parameter], group: dist.ProcessGroup
    ) -> None:
        """Move the parameters into one flat tensor; a collective where memory is shared.

        Args:
            layout: of the bucket.
            parameters: all parameters of the optimizer.
            group: the ranks.
        """
        self.layout, self._group = layout, group
        self._parameters = {place.index: parameters[place.index] for place in layout.places}
        self._size = dist.get_world_size(group)
        self.begin, self.end = layout.share(dist.get_rank(group), self._size)
        self._length = -(-layout.numel // self._size)
        first = parameters[layout.places[0].index]
        self.values = zeros(group, self._length * self._size, first.dtype, first.device)
        self.gradient = first.new_zeros(self.end - self.begin, requires_grad=False)
        self.parts = {
            place.index: (max(self.begin, place.begin), min(self.end, place.end))
            for place in layout.places
            if max(self.begin, place.begin) < min(self.end, place.end)
        }
        with torch.no_grad():
            views = [place.view(self.values) for place in layout.places]
            copy_all(views, list(self._parameters.values()))
            for parameter, view in zip(self._parameters.values(), views, strict=True):
                parameter.data = view
        self._addresses = list(map(Tensor.data_ptr, views))

    def collect(self) -> None:
        """Read this rank's part of the average gradient from the `.grad` of the parameters.

        Raises:
            RuntimeError: a parameter has been moved to other memory.
        """
        if list(map(Tensor.data_ptr, self._parameters.values())) != self._addresses:
            raise RuntimeError(
                "ShardedOptimizer: a parameter has other memory than before; change parameters in "
                "place, and convert the module before it is wrapped"
            )
        targets, sources = [], []
        for place in self.layout.places:
            gradient = self._parameters[place.index].grad
            if gradient is not None and place.index in self.parts:
                begin, end = self.parts[place.index]
                targets.append(self.gradient[begin - self.begin : end - self.begin])
                sources.append(place.part(gradient, begin, end))
        copy_all(targets, sources)
        self.gradient.div_(self._size)

    def gather(self) -> dist.Work:
        """Begin to give all ranks the parameters that each has stepped; a collective."""
        return self.gather_into(self.values)

    def gather_into(self, flat: Tensor) -> dist.Work:
        """Begin to fill a flat tensor like `values`, of which each rank has its own part."""
        rank = dist.get_rank(self._group)
        own = flat[rank * self._length : (rank + 1) * self._length]
        work: dist.Work = all_gather(flat, own, self._group, async_op=True)
        return work
