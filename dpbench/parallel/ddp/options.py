"""What a reducer is told when it is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from dpbench.parallel.ddp.buckets import Bucket, BucketCaps
from dpbench.parallel.ddp.sparse_bucket import LocalBucket

if TYPE_CHECKING:
    from dpbench.parallel.sharded.bucket import ShardedBucket

AnyBucket = Bucket | LocalBucket
MakeBucket = Callable[[Sequence[int], Sequence[nn.Parameter]], "ShardedBucket"]
"""Makes the bucket of the parameters at these indices among all; a collective."""


@dataclass(frozen=True, slots=True)
class ReducerOptions:
    """How gradients are grouped, and which kinds of graph are expected."""

    caps: BucketCaps
    find_unused: bool = False
    static_graph: bool = False
    skip_unused: bool = False
    """Skip buckets whose parameters are all unused on all ranks."""
    overlap: bool = True
    """Send buckets while backward goes on; else all at its end, one after the other."""
    make_bucket: MakeBucket | None = None
    """Make all buckets like this, once."""
