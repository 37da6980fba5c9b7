"""The kind of bucket that each group of parameters gets."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import Tensor, nn

from dpbench.parallel.ddp.buckets import Bucket
from dpbench.parallel.ddp.comm_hooks import Exchange
from dpbench.parallel.ddp.options import AnyBucket, ReducerOptions
from dpbench.parallel.ddp.participation import MissingReport
from dpbench.parallel.ddp.sparse_bucket import LocalBucket, SparseBucket


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
            and not options.skip_unused
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
