"""The kinds of buckets beside Bucket, and which kind each group of parameters gets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dpbench.parallel.ddp.buckets import Bucket, BucketCaps
from dpbench.parallel.ddp.comm_hooks import Exchange, Future, GradientBucket, Hook
from dpbench.parallel.ddp.participation import MissingReport

if TYPE_CHECKING:
    from dpbench.parallel.sharded.bucket import ShardedBucket


class LocalBucket:
    """A Bucket for a group of one rank: the gradients already are the average, and stay in place.

    It has the same attributes and methods. Those that do nothing here are inherited by the kinds of
    buckets to which no gradient is lent.
    """

    def __init__(self, indices: Sequence[int]) -> None:
        self.indices = list(indices)
        self.waiting: set[int] = set()
        self.nbytes = 0

    def arm(self) -> None:
        """Do nothing: gradients stay where they are."""

    def lent(self) -> list[int]:
        """Always empty: no `.grad` refers to the bucket."""
        return []

    def take_in(self, index: int) -> None:
        """Do nothing: no gradient becomes an alias."""

    def collect(self, scale: float, missing: Collection[int] = ()) -> list[int]:
        return []

    def clear(self) -> None:
        """Do nothing: there is no flat gradient."""

    def send(self, *, average: bool, hook: Hook | None, number: int, last: bool) -> None:
        """Do nothing: there is no other rank."""

    def wait(self) -> object:
        """Do nothing: there is no other rank."""

    def finish(self, keep: Collection[int] = ()) -> None:
        """Do nothing: the gradients are unchanged."""


class SparseBucket(LocalBucket):
    """A Bucket for one parameter with a sparse gradient, which is averaged row by row."""

    def __init__(self, index: int, parameter: nn.Parameter, exchange: Exchange) -> None:
        super().__init__([index])
        self.parameters = [parameter]
        self._exchange = exchange
        self._gradient = self._nothing()
        self._absent = False
        self._counts: Tensor | None = None
        self._work: dist.Work | None = None
        self._future: Future[Any] | None = None

    def collect(self, scale: float, missing: Collection[int] = ()) -> list[int]:
        """Take the gradient, times `scale`; returns [index] if this backward gave none.

        Raises:
            RuntimeError: the gradient is dense.
        """
        gradient = self.parameters[0].grad
        if gradient is None:
            self.clear()
            return self.indices
        self._absent = self.indices[0] in missing
        if not gradient.is_sparse:
            raise RuntimeError(
                "got a dense gradient for the weight of an embedding with sparse=True; is it "
                "shared with another layer? Build the embedding with sparse=False"
            )
        self._gradient = (gradient.detach() * scale).coalesce()
        self.nbytes = self._gradient.values().nbytes + self._gradient.indices().nbytes
        return self.indices if self._absent else []

    def clear(self) -> None:
        """Set a gradient without rows, for a rank that has no data."""
        self._gradient = self._nothing()
        self._absent = True
        self.nbytes = 0

    def send(self, *, average: bool, hook: Hook | None, number: int, last: bool) -> None:
        """Start the exchange. It only sums: with `average`, `finish` divides."""
        self._divisor = self._exchange.size if average else 1
        if hook is not None:
            parameters = self.parameters
            bucket = GradientBucket(number, self._gradient, [self._gradient], parameters, last)
            self._future = hook(bucket)
            return
        size = self._exchange.size
        mine = torch.tensor([self._gradient._nnz()], device=self._gradient.device)
        self._counts = mine.new_zeros(size)
        self._work = dist.all_gather(
            list(torch.split(self._counts, 1)), mine, group=self._exchange.group, async_op=True
        )

    def finish(self, keep: Collection[int] = ()) -> None:
        """Wait for the result, and make it the gradient unless the old one is to be kept."""
        result = self.wait()
        if not (self._absent and self.indices[0] in keep):
            self.parameters[0].grad = result

    def wait(self) -> Tensor:
        """The gradient over all ranks. The rows are exchanged here, since their counts must be
        known first."""
        if self._future is not None:
            value = self._future.wait()
            self._gradient = value[0] if isinstance(value, (list, tuple)) else value
            self._future = None
        if self._work is not None:
            self._work.wait()
            self._work = None
            self._gradient = self._union()
        return self._gradient

    def _union(self) -> Tensor:
        """The rows of all ranks; rows that several ranks have are added up."""
        assert self._counts is not None
        counts = self._counts.tolist()
        rows = self._gather(self._gradient.indices().t(), counts).t()
        values = self._gather(self._gradient.values(), counts)
        shape = self._gradient.shape
        total = torch.sparse_coo_tensor(rows, values, shape, check_invariants=False)
        return total.coalesce() / self._divisor

    def _gather(self, mine: Tensor, counts: list[int]) -> Tensor:
        """The rows of all ranks; rank r has counts[r] of them."""
        longest = max(counts)
        padded = mine.new_zeros((longest, *mine.shape[1:]))
        padded[: len(mine)] = mine
        everyone = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(everyone, padded, group=self._exchange.group)
        return torch.cat([part[:count] for part, count in zip(everyone, counts, strict=True)])

    def _nothing(self) -> Tensor:
        parameter = self.parameters[0]
        shape = parameter.shape
        return torch.sparse_coo_tensor(
            torch.empty((1, 0), dtype=torch.long, device=parameter.device),
            parameter.new_empty((0, *shape[1:])),
            shape,
            check_invariants=False,
        ).coalesce()


AnyBucket = Bucket | LocalBucket
MakeBucket = Callable[[Sequence[int], Sequence[nn.Parameter]], "ShardedBucket"]
"""Makes the bucket of the parameters at these indices among all; a collective."""


@dataclass(frozen=True, slots=True)
class ReducerOptions:
    """Options for the grouping of gradients, and for the kinds of graph that are expected."""

    caps: BucketCaps
    find_unused: bool = False
    static_graph: bool = False
    overlap: bool = True
    """Send buckets while backward goes on; else all at its end, one after the other."""
    make_bucket: MakeBucket | None = None
    """Make all buckets like this, once."""


def make_buckets(
    groups: Sequence[Sequence[int]],
    parameters: Sequence[nn.Parameter],
    sparse: Collection[int],
    exchange: Exchange,
    options: ReducerOptions,
    *,
    has_hook: bool,
) -> tuple[list[AnyBucket], Tensor | None]:
    """Make the buckets, and room for a MissingReport at the end of the last one; a collective.

    Args:
        groups: the indices in each bucket, in their order.
        parameters: all parameters.
        sparse: the indices of those with sparse gradients, each in a group of its own.
        exchange, options: those of the reducer.
        has_hook: whether a communication hook replaces the all-reduce.

    Returns:
        The buckets, and the room; None where the report has to travel alone.
    """
    made: list[AnyBucket] = []
    rider: Tensor | None = None
    for group in groups:
        bucket: AnyBucket
        first = parameters[group[0]]
        rides = (
            group is groups[-1]
            and not has_hook
            and options.make_bucket is None
            and MissingReport.can_ride(first.dtype, exchange.size)
        )
        if options.make_bucket is not None:
            bucket = options.make_bucket(group, parameters)
        elif exchange.size == 1 and not has_hook:
            bucket = LocalBucket(group)
        elif group[0] in sparse:
            bucket = SparseBucket(group[0], first, exchange)
        else:
            bucket = Bucket(
                group,
                parameters,
                exchange,
                rider_elements=MissingReport.length(len(parameters)) if rides else 0,
                aligned=not has_hook,
            )
            rider = bucket.rider if rides else None
        made.append(bucket)
    return made, rider
