"""Where the parameters of a bucket lie in one flat tensor, and which part of it each rank steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dpbench.parallel.shm import zeros
from dpbench.parallel.torch_private import copy_all

# torch 2.13 has renamed both, and deprecates the old names.
all_gather: Any = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter: Any = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


class Place(NamedTuple):
    """A parameter's elements in the flat tensor of its bucket.

    Attributes:
        number: the parameter's index in the optimizer.
        begin, end: where it begins and ends, in elements.
        size, stride: of the parameter, which covers these elements without gaps.
    """

    number: int
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
        return whole.as_strided((self.end - self.begin,), (1,))[
            begin - self.begin : end - self.begin
        ]


Layout = tuple[Place, ...]
"""One bucket of the wrapper; equal layouts have their parameters at the same places."""


def layout_of(numbers: Sequence[int], buffer: Tensor, views: Sequence[Tensor]) -> Layout:
    """The layout of a bucket's buffer with these views for the parameters."""
    first = int(buffer.storage_offset())
    starts = [int(view.storage_offset()) - first for view in views]
    return tuple(
        Place(number, start, start + view.numel(), tuple(view.size()), view.stride())
        for number, start, view in zip(numbers, starts, views, strict=True)
    )


class ParameterPart(NamedTuple):
    """The elements of one parameter in this rank's share, which it steps like a parameter.

    Attributes:
        place: of the whole parameter.
        begin, end: of this part, in elements of the bucket.
        values: 1-D, in the memory of the parameter.
        gradient: 1-D, for the average gradient.
    """

    place: Place
    begin: int
    end: int
    values: nn.Parameter
    gradient: Tensor


class BucketShare:
    """The parameters of a bucket in one flat tensor, and this rank's share of it."""

    def __init__(
        self, layout: Layout, parameters: Sequence[nn.Parameter], group: dist.ProcessGroup
    ) -> None:
        """Move the parameters into one flat tensor; a collective where memory is shared.

        Args:
            layout: of the bucket.
            parameters: all parameters of the optimizer.
            group: the ranks.
        """
        self.layout, self._group = layout, group
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        numel = max(place.end for place in layout)
        length = -(-numel // size)
        low, high = (min(edge * length, numel) for edge in (rank, rank + 1))
        self._own = slice(rank * length, (rank + 1) * length)
        self._parameters = [parameters[place.number] for place in layout]
        first = self._parameters[0]
        # All parameters, padded so that all shares have the same length.
        self.values = zeros(group, length * size, first.dtype, first.device)
        with torch.no_grad():
            views = [place.view(self.values) for place in layout]
            copy_all(views, self._parameters)
            for parameter, view in zip(self._parameters, views, strict=True):
                parameter.data = view
        self._addresses = [view.data_ptr() for view in views]
        self._gradient = first.new_zeros(high - low, requires_grad=False)
        self.parts = [
            ParameterPart(
                place,
                begin,
                end,
                nn.Parameter(self.values[begin:end]),
                self._gradient[begin - low : end - low],
            )
            for place in layout
            if (begin := max(low, place.begin)) < (end := min(high, place.end))
        ]

    def collect(self, parameters: Sequence[nn.Parameter]) -> None:
        """Read this rank's share of the average gradient from the `.grad` of the parameters.

        Raises:
            RuntimeError: a parameter has been moved to other memory.
        """
        if [parameter.data_ptr() for parameter in self._parameters] != self._addresses:
            raise RuntimeError(
                "ShardedOptimizer: a parameter has other memory than before; change parameters in "
                "place, and convert the module before it is wrapped"
            )
        targets, sources = [], []
        for part in self.parts:
            gradient = parameters[part.place.number].grad
            part.values.grad = None if gradient is None else part.gradient
            if gradient is not None:
                targets.append(part.gradient)
                sources.append(part.place.part(gradient, part.begin, part.end))
        copy_all(targets, sources)
        self._gradient.div_(dist.get_world_size(self._group))

    def gather(self) -> dist.Work:
        """Begin to give all ranks the parameters, of which each has stepped its own share."""
        work: dist.Work = all_gather(
            self.values, self.values[self._own], self._group, async_op=True
        )
        return work
