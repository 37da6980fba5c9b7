"""Spreads an error that only one rank has found, so that no rank waits for one that is gone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from dpbench.errors import DpbenchError, UsageError
from dpbench.measure.rank_group import RankGroup


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
