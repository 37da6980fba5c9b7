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
    said = "" if mine is None else json.dumps([type(mine).__name__, str(mine)])
    everyone = [data.decode() for data in ranks.gather_bytes(said.encode())]
    if mine is not None and len(set(everyone)) == 1:
        raise mine
    for rank, theirs in enumerate(everyone):
        if theirs:
            raise UsageError(f"rank {rank}: {json.loads(theirs)[1]}") from mine


def require_same(job: TrainingJob, ranks: RankGroup) -> None:
    """Raise UsageError, on all ranks, unless all got the same job; a collective.

    This covers more than the training itself: log, checkpoints and comparisons are collectives,
    too.
    """
    told = {**encode(job.spec), **encode(job.run), "resume": job.resume is not None}
    mine = json.dumps(told, sort_keys=True).encode()
    everyone = ranks.gather_bytes(mine)
    for rank, theirs in enumerate(everyone):
        if theirs != everyone[0]:
            raise UsageError(
                f"rank {rank} was given another training than rank 0: "
                f"{_differences(json.loads(everyone[0]), json.loads(theirs))}; give every node "
                "the same command"
            )


def agreed_samples(splits: Splits, ranks: RankGroup) -> str:
    """The hash of the samples; raises UsageError, on all ranks, if one has other samples."""
    mine = splits.sha256()
    counts = f"{len(splits.train)} + {len(splits.test)} samples of hash {mine[:12]}"
    everyone = [data.decode() for data in ranks.gather_bytes(f"{mine} {counts}".encode())]
    hashes, words = zip(*(theirs.split(" ", 1) for theirs in everyone), strict=True)
    for rank, theirs in enumerate(hashes):
        if theirs != hashes[0]:
            raise UsageError(
                f"rank {rank} has other samples than rank 0: {words[0]} on rank 0, {words[rank]} "
                "there; give every host the same data"
            )
    return mine


def _differences(first: dict[str, object], other: dict[str, object]) -> str:
    names = sorted(first.keys() | other.keys())
    return ", ".join(
        f"{name}: {first.get(name, 'default')!r} on rank 0, {other.get(name, 'default')!r} there"
        for name in names
        if first.get(name) != other.get(name)
    )
