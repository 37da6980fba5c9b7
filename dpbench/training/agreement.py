"""Agreement of all ranks of a training, so that none waits for one that is gone.

An error that only one rank has found is raised on all; so is a difference between their jobs or
their samples.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from dpbench.codec import encode
from dpbench.data.datasets import Splits
from dpbench.errors import DpbenchError, UsageError
from dpbench.measure.rank_group import RankGroup
from dpbench.training.job import TrainingJob


@contextmanager
def refused_by_all(ranks: RankGroup) -> Iterator[None]:
    """A context in which an error of dpbench on any rank is raised on all; its end is a collective.

    The block itself must not make a collective. If all ranks have the same error, it is raised as
    it is; otherwise all raise a UsageError with the message of the first rank that failed.
    """
    mine: DpbenchError | None = None
    try:
        yield
    except DpbenchError as error:
        mine = error
    own = "" if mine is None else f"{type(mine).__name__}\n{mine}"
    everyone = [data.decode() for data in ranks.gather_bytes(own.encode())]
    if mine is not None and len(set(everyone)) == 1:
        raise mine
    for rank, theirs in enumerate(everyone):
        if theirs:
            _, _, words = theirs.partition("\n")
            raise UsageError(f"rank {rank}: {words}") from mine


def require_same(job: TrainingJob, ranks: RankGroup) -> None:
    """Raise UsageError, on all ranks, unless all got the same job; a collective.

    This covers more than the training itself: log, checkpoints and comparisons are collectives,
    too.
    """
    own = {**encode(job.spec), **encode(job.run), "resume": job.resume is not None}
    first, *others = map(json.loads, ranks.gather_bytes(json.dumps(own).encode()))
    for rank, theirs in enumerate(others, start=1):
        differences = [
            f"{name}: {first.get(name, 'default')!r} on rank 0, {theirs.get(name, 'default')!r} "
            "there"
            for name in sorted({*first, *theirs})
            if first.get(name) != theirs.get(name)
        ]
        if differences:
            raise UsageError(
                f"rank {rank} was given another training than rank 0: {', '.join(differences)}; "
                "give every node the same command"
            )


def agreed_samples(splits: Splits, ranks: RankGroup) -> str:
    """The hash of the samples; raises UsageError, on all ranks, if one has other samples."""
    mine = splits.sha256()
    own = [mine, f"{len(splits.train)} + {len(splits.test)} samples of hash {mine[:12]}"]
    first, *others = map(json.loads, ranks.gather_bytes(json.dumps(own).encode()))
    for rank, theirs in enumerate(others, start=1):
        if theirs != first:
            raise UsageError(
                f"rank {rank} has other samples than rank 0: {first[1]} on rank 0, {theirs[1]} "
                "there; give every host the same data"
            )
    return mine
