"""The ends of a launch's workers, with the first cause first."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from dpbench.launch.rank import speaks_of_lost_peer
from dpbench.launch.signals import end_in_words

LAST_LINES = 20
LARGEST_TAIL_BYTES = 1 << 16
ENDED_BY_LAUNCHER = (-signal.SIGTERM, -signal.SIGKILL)


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerEnd:
    """A worker that did not end with status 0."""

    rank: int
    pid: int
    exit_code: int
    """Exit code; negative if a signal ended it."""
    at_seconds: int
    """Time at which the launcher saw it, in seconds since 1970."""
    last_lines: tuple[str, ...]
    """Last lines of its stderr; empty if that was not kept."""

    def __str__(self) -> str:
        return f"rank {self.rank} {end_in_words(self.exit_code)}"

    @property
    def lost_peer(self) -> bool:
        """Whether it failed because another worker had."""
        return speaks_of_lost_peer("\n".join(self.last_lines))


class WorkersFailed(Exception):
    """A worker of this host did not end with status 0; `ends` begins with the first cause."""

    def __init__(self, ends: Sequence[WorkerEnd]) -> None:
        super().__init__(str(ends[0]))
        self.ends = tuple(ends)


def ends_of(failures: Mapping[int, ProcessFailure], logs: Path) -> list[WorkerEnd]:
    """The workers that failed by themselves, from torch's failures, with the first cause first.

    The first cause is the earliest one that had not just lost its peer. Workers that the launcher
    ended when another had failed are left out. `logs` is the log folder of torchrun.
    """
    ends = [_end(rank, failure, logs) for rank, failure in failures.items()]
    first = min(ends, key=lambda end: end.at_seconds)
    own = [end for end in ends if end is first or end.exit_code not in ENDED_BY_LAUNCHER]
    return sorted(own, key=lambda end: (end.lost_peer, end.at_seconds, end.rank))


def _end(rank: int, failure: ProcessFailure, logs: Path) -> WorkerEnd:
    return WorkerEnd(
        rank=rank,
        pid=failure.pid,
        exit_code=failure.exitcode,
        at_seconds=failure.timestamp,
        last_lines=_last_lines(logs, failure.local_rank),
    )


def _last_lines(logs: Path, local_rank: int) -> tuple[str, ...]:
    """Last lines of the last attempt's stderr; torchrun writes it to
    LOGS/RUN/attempt_N/LOCAL_RANK."""
    kept = logs.glob(f"*/attempt_*/{local_rank}/stderr.log")
    latest = max(kept, key=lambda path: path.stat().st_mtime_ns, default=None)
    if latest is None:
        return ()
    with latest.open("rb") as file:
        file.seek(max(latest.stat().st_size - LARGEST_TAIL_BYTES, 0))
        text = file.read().decode(errors="replace")
    return tuple(text.splitlines()[-LAST_LINES:])
