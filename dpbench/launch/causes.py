"""The first cause of a trial's failure, from how its ranks failed.

When one rank dies the others lose their connection and fail too, often before anyone looks. The
first cause is, in this order: an exception that is not a lost connection (the earliest); a rank
that was busy elsewhere while the others waited for it at the time limit; a rank that ended silently
(killed, or exited); and only then a lost connection.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from dpbench import units
from dpbench.launch.outcome import Outcome
from dpbench.launch.rank import Failure, main_thread_stack
from dpbench.launch.signals import ENDING, end_in_words
from dpbench.records.trial import Status

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>\S+)')
_DPBENCH = Path(__file__).parents[1]
_WAITING_FOLDERS = (Path(torch.__file__).parent, _DPBENCH / "parallel", _DPBENCH / "measure")
"""Folders of waiting code: a rank whose innermost frame is in one waits for a collective, or
computes in torch."""

_REDUCERS = _DPBENCH / "parallel" / "ddp"

KILLING = (signal.SIGKILL, *ENDING)
"""Signals sent from outside; all others come from the program itself."""

SERVER_GONE = 255
"""Exit code that multiprocessing gives a rank whose fork server has ended: nobody knows its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankTrace:
    """How a rank failed: by an exception, an end, or the time limit; may come from another host.

    A rank that was ended because another had failed leaves no trace.
    """

    rank: int
    failure: Failure | None = None
    exit_code: int | None = None
    """Exit code of a rank that ended without a result or a failure; negative: the signal."""
    hung: str | None = None
    """Activity at the time limit, in words: "was in loss (model.py:12)"."""
    waited_in: str | None = None
    """At the time limit: the collective in which it waited for other ranks, "" if its stack does
    not name it; None if it was busy elsewhere."""


def outcome_of(
    traces: Sequence[RankTrace],
    time_limit_seconds: float,
    *,
    name: Callable[[int], str] = "rank {}".format,
) -> Outcome:
    """The outcome of a trial that did not complete, from the traces of all its ranks. `name` gives
    the names of ranks in messages."""
    raised = [(trace.failure, name(trace.rank)) for trace in traces if trace.failure]
    raised.sort(key=lambda one: (one[0].lost_peer, one[0].at_seconds))
    if raised and not raised[0][0].lost_peer:
        return _raised(*raised[0])
    if hung := [trace for trace in traces if trace.hung]:
        # The ranks that others waited for; all of them if every rank waited.
        missing = [trace for trace in hung if trace.waited_in is None]
        where = [f"{name(trace.rank)} {trace.hung}" for trace in missing or hung]
        if missing:
            waiting = [trace for trace in hung if trace.waited_in]
            where += [f"{name(trace.rank)} waited in {trace.waited_in}" for trace in waiting]
        reason = f"no result after {units.seconds(time_limit_seconds)}: {'; '.join(where)}"
        return Outcome(status=Status.TIMED_OUT, reason=reason)
    ends = [(trace.exit_code, name(trace.rank)) for trace in traces if trace.exit_code is not None]
    if ends:
        # NCCL's watchdog aborts a process that has lost its peer on another host.
        code, who = min(ends, key=lambda end: end[0] == -signal.SIGABRT)
        words = end_in_words(code) if code else "ended without a result"
        if code == SERVER_GONE:
            words += ", or the server that ranks are forked from was killed"
        return Outcome(
            status=Status.FAILED,
            reason=f"{who} {words}",
            killed=-code in KILLING or code == SERVER_GONE,
        )
    if raised:
        return _raised(*raised[0])
    return Outcome(status=Status.FAILED, reason="the ranks ended without a trace")


def _raised(failure: Failure, who: str) -> Outcome:
    if failure.peak_memory:
        reason = (
            f"{who} ran out of memory: {failure.message}; its peak was {failure.peak_memory}; take "
            "a smaller batch or message, or end what else holds memory there"
        )
        return Outcome(status=Status.OUT_OF_MEMORY, reason=reason, raised=failure)
    reason = f"{who} raised {failure.message}" if failure.kind else f"{who}: {failure.text}"
    return Outcome(status=Status.FAILED, reason=reason, raised=failure)


def hang_of(scratch: Path, rank: int) -> RankTrace:
    """The trace of a rank of this host that the time limit ended."""
    stack = main_thread_stack(scratch, rank)
    frame = _FRAME.search(stack)
    if frame is None:
        return RankTrace(rank=rank, hung="did not respond")
    file = Path(frame["file"])
    hung = f"was in {frame['function']} ({file.name}:{frame['line']})"
    if not any(file.is_relative_to(folder) for folder in _WAITING_FOLDERS):
        return RankTrace(rank=rank, hung=hung)
    collective = ""
    # The outermost call: those inside a wrapper wait for gradients.
    for outer in _FRAME.finditer(stack):
        if Path(outer["file"]).name == "distributed_c10d.py":
            collective = outer["function"]
        elif not collective and Path(outer["file"]).is_relative_to(_REDUCERS):
            collective = "the all-reduce of gradients"
    return RankTrace(rank=rank, hung=hung, waited_in=collective)
