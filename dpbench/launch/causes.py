"""The first cause of a trial's failure, from the traces that its ranks left.

When one rank dies the others lose their connection and fail too, often before anyone looks. The
first cause is, in this order: an exception that is not a lost connection (the earliest); a host
that is gone; a rank that was busy elsewhere while the others waited for it at the time limit; a
rank that ended silently (killed, or exited); and only then a lost connection. A rank that was
stopped because the trial had failed is no cause.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from dpbench import units
from dpbench.launch.launcher import TrialOutcome
from dpbench.launch.rank import Failure, failure_path, main_thread_stack
from dpbench.launch.signals import ENDING, end_in_words
from dpbench.records.trial import Status

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>\S+)')
_DPBENCH = Path(__file__).parents[1]
_WAITING_FOLDERS = (Path(torch.__file__).parent, _DPBENCH / "parallel", _DPBENCH / "measure")
"""Folders of waiting code: a rank whose innermost frame is in one waits for a collective, or
computes in torch."""

_REDUCERS = _DPBENCH / "parallel" / "ddp"

FROM_OUTSIDE = (signal.SIGKILL, *ENDING)
"""Signals sent from outside; all others come from the program itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stuck:
    """Position of a rank at the time limit."""

    place: str
    waiting: bool
    """True in a collective, or computing in torch."""
    collective: str | None = None
    """The collective in which it waited for other ranks, if its stack shows it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankTrace:
    """Traces of one rank in a trial that did not complete; may come from another host."""

    rank: int
    done: bool = False
    """True if it has a result."""
    failure: Failure | None = None
    """Failure of the rank. Its `at_seconds` counts from the start of the ranks on its host, since
    clocks of hosts differ."""
    stuck: Stuck | None = None
    exit_code: int | None = None
    """Exit code, if this rank ended before the others; negative: the signal."""
    aborted: bool = False
    """True if it ran until the trial was stopped for another reason."""
    overdue: bool = False
    """True if it ran until the time limit, and was ended then."""


def collect(
    scratch: Path,
    ranks: Iterable[int],
    started_seconds: float,
    *,
    done: Container[int] = (),
    exit_codes: Mapping[int, int],
    aborted: Container[int] = (),
    overdue: Container[int] = (),
) -> tuple[RankTrace, ...]:
    """Collect the traces of this host's ranks, which started at that time of its monotonic clock.

    `exit_codes` are those of the ranks that ended before the others.
    """
    return tuple(
        RankTrace(
            rank=rank,
            done=rank in done,
            failure=_read_failure(scratch, rank, started_seconds),
            stuck=_read_stack(scratch, rank),
            exit_code=exit_codes.get(rank),
            aborted=rank in aborted,
            overdue=rank in overdue,
        )
        for rank in ranks
    )


def explain(
    traces: Sequence[RankTrace],
    time_limit_seconds: float,
    *,
    name: Callable[[int], str] = "rank {}".format,
    outside: str | None = None,
) -> TrialOutcome:
    """The outcome of a trial that did not complete, from the traces of all its ranks.

    `name` gives the names of ranks in messages. `outside` is the cause if no rank ended the trial,
    such as the loss of a host: lost connections on other hosts are then a consequence.
    """
    failures = sorted((t.failure for t in traces if t.failure), key=lambda f: f.at_seconds)
    if causes := [failure for failure in failures if not failure.lost_peer]:
        return _raised(causes[0], name)
    if outside:
        return TrialOutcome(status=Status.FAILED, reason=outside)
    if any(trace.stuck or trace.overdue for trace in traces):
        return _hung(traces, time_limit_seconds, name)
    silent_ends = {
        trace.rank: trace.exit_code
        for trace in traces
        if trace.exit_code is not None and not (trace.failure or trace.aborted)
    }
    if silent_ends:
        # NCCL's watchdog aborts a process that has lost its peer on another host.
        rank = min(silent_ends, key=lambda rank: silent_ends[rank] == -signal.SIGABRT)
        return TrialOutcome(
            status=Status.FAILED,
            reason=f"{name(rank)} {end_in_words(silent_ends[rank])}",
            from_outside=-silent_ends[rank] in FROM_OUTSIDE,
        )
    # These exited with status 0, or were ended with the others.
    if wordless := [t.rank for t in traces if not (t.done or t.failure or t.aborted)]:
        words = " and ".join(map(name, wordless))
        return TrialOutcome(status=Status.FAILED, reason=f"{words} ended without a result")
    if failures:
        return _raised(failures[0], name)
    return TrialOutcome(status=Status.FAILED, reason="the ranks ended without a trace")


def _raised(failure: Failure, name: Callable[[int], str]) -> TrialOutcome:
    who = name(failure.rank)
    if failure.out_of_memory:
        reason = (
            f"{who} ran out of memory: {failure.message}; "
            f"it had held {failure.peak_memory} at most; take a smaller batch or message, or end "
            "what else holds memory there"
        )
        return TrialOutcome(status=Status.OUT_OF_MEMORY, reason=reason)
    return TrialOutcome(
        status=Status.FAILED,
        reason=f"{who} raised {failure.message}",
        raised=failure,
    )


def _hung(traces: Sequence[RankTrace], limit: float, name: Callable[[int], str]) -> TrialOutcome:
    """Name the rank that was not in a collective."""
    stuck = [(trace.rank, trace.stuck) for trace in traces if trace.stuck]
    silent = [t.rank for t in traces if not (t.stuck or t.done or t.failure)]
    elsewhere = [(rank, place) for rank, place in stuck if not place.waiting]
    if silent and not elsewhere:
        where = "; ".join(f"{name(rank)} did not respond" for rank in silent)
    else:
        where = "; ".join(f"{name(r)} was in {at.place}" for r, at in elsewhere or stuck)
    if silent or elsewhere:
        where += "".join(
            f"; {name(rank)} waited in {at.collective}"
            for rank, at in stuck
            if at.waiting and at.collective
        )
    after = f"no result after {units.seconds(limit)}"
    return TrialOutcome(status=Status.TIMED_OUT, reason=f"{after}: {where}")


def _read_failure(scratch: Path, rank: int, started_seconds: float) -> Failure | None:
    path = failure_path(scratch, rank)
    if not path.exists():
        return None
    failure = Failure(**json.loads(path.read_text(encoding="utf-8")))
    return replace(failure, at_seconds=failure.at_seconds - started_seconds)


def _read_stack(scratch: Path, rank: int) -> Stuck | None:
    """Position of the rank at the time limit; None if the limit did not end it."""
    stack = main_thread_stack(scratch, rank)
    if not stack:
        return None
    frame = _FRAME.search(stack)
    if frame is None:
        return Stuck(place="an unknown place", waiting=True)
    file = Path(frame["file"])
    collective = None
    # The outermost call: those inside a wrapper wait for gradients.
    for outer in _FRAME.finditer(stack):
        if Path(outer["file"]).name == "distributed_c10d.py":
            collective = outer["function"]
        elif collective is None and Path(outer["file"]).is_relative_to(_REDUCERS):
            collective = "the all-reduce of gradients"
    return Stuck(
        place=f"{frame['function']} ({file.name}:{frame['line']})",
        waiting=any(file.is_relative_to(folder) for folder in _WAITING_FOLDERS),
        collective=collective,
    )
