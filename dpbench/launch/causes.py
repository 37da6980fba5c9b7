"""The first cause of a trial's failure, from the traces that its ranks left.

When one rank dies the others lose their connection and fail too, often before anyone looks. The
first cause is, in this order: an exception that is not a lost connection (the earliest); a rank
that ended without a word (killed, or exited); a rank that was busy elsewhere while the others
waited for it at the time limit; and only then a lost connection.
"""

from __future__ import annotations

import json
import re
import signal
from dataclasses import dataclass
from pathlib import Path

import torch

from dpbench import units
from dpbench.launch.launcher import Outcome
from dpbench.launch.rank import Failure, done_path, failure_path, stack_path
from dpbench.records import Status

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>\S+)')
_DPBENCH = Path(__file__).parents[1]
_WAITING_FOLDERS = (Path(torch.__file__).parent, _DPBENCH / "parallel", _DPBENCH / "measure")
"""A rank whose innermost frame lies here waits for a collective, or computes in torch."""


@dataclass(frozen=True, slots=True)
class SilentEnd:
    """A rank that the agent found ended, with its exit code (negative: the signal)."""

    rank: int
    exit_code: int


def explain(
    scratch: Path, rank_count: int, ended: SilentEnd | None, time_limit_seconds: float
) -> Outcome:
    """The outcome of a trial that did not complete."""
    failures = [f for rank in range(rank_count) if (f := _read_failure(scratch, rank))]
    causes = sorted((f for f in failures if not f.lost_peer), key=lambda f: f.at_seconds)
    stacks = {rank: s for rank in range(rank_count) if (s := _read_stack(scratch, rank))}
    if causes:
        return _raised(causes[0])
    if stacks:
        return _hung(stacks, rank_count, time_limit_seconds)
    if ended and not any(failure.rank == ended.rank for failure in failures):
        return _ended_silently(ended)
    if silent := _without_a_word(scratch, rank_count):
        words = " and ".join(f"rank {rank}" for rank in silent)
        return Outcome(status=Status.FAILED, reason=f"{words} ended without a result")
    if failures:
        return _raised(min(failures, key=lambda f: f.at_seconds))
    return Outcome(status=Status.FAILED, reason="the ranks ended without a trace")


def _raised(failure: Failure) -> Outcome:
    if failure.out_of_memory:
        reason = (
            f"rank {failure.rank} ran out of memory: {failure.message}; "
            f"it had held {failure.peak_memory} at most; take a smaller batch or message, or end "
            "what else holds memory there"
        )
        return Outcome(status=Status.OUT_OF_MEMORY, reason=reason)
    return Outcome(status=Status.FAILED, reason=f"rank {failure.rank} raised {failure.message}")


def _ended_silently(ended: SilentEnd) -> Outcome:
    if ended.exit_code >= 0:
        reason = f"rank {ended.rank} exited with status {ended.exit_code}"
        return Outcome(status=Status.FAILED, reason=reason)
    number = -ended.exit_code
    name = signal.Signals(number).name if number in list(signal.Signals) else f"signal {number}"
    hint = " (kill -9, or the kernel for lack of memory)" if name == "SIGKILL" else ""
    return Outcome(status=Status.FAILED, reason=f"rank {ended.rank} was killed by {name}{hint}")


def _hung(stacks: dict[int, str], rank_count: int, limit: float) -> Outcome:
    """Names the rank that was somewhere else than in a collective."""
    places = {rank: _FRAME.search(stack) for rank, stack in stacks.items()}
    silent = [rank for rank in range(rank_count) if rank not in stacks]
    elsewhere = [
        rank
        for rank, place in places.items()
        if place and not any(Path(place["file"]).is_relative_to(at) for at in _WAITING_FOLDERS)
    ]
    after = f"no result after {units.seconds(limit)}"
    if elsewhere:
        where = "; ".join(f"rank {r} was in {_place(places[r])}" for r in elsewhere)
    elif silent:
        where = "; ".join(f"rank {rank} did not respond" for rank in silent)
    else:
        where = "; ".join(f"rank {r} was in {_place(place)}" for r, place in places.items())
    return Outcome(status=Status.TIMED_OUT, reason=f"{after}: {where}")


def _place(match: re.Match[str] | None) -> str:
    if match is None:
        return "an unknown place"
    return f"{match['function']} ({Path(match['file']).name}:{match['line']})"


def _without_a_word(scratch: Path, rank_count: int) -> list[int]:
    """Ranks with neither a result nor a failure: they left with exit status 0, or were ended."""
    traces = (done_path, failure_path)
    return [r for r in range(rank_count) if not any(path(scratch, r).exists() for path in traces)]


def _read_failure(scratch: Path, rank: int) -> Failure | None:
    path = failure_path(scratch, rank)
    return Failure(**json.loads(path.read_text())) if path.exists() else None


def _read_stack(scratch: Path, rank: int) -> str | None:
    """The stack of the main thread, innermost frame first; None if the rank was not cut off."""
    path = stack_path(scratch, rank)
    text = path.read_text() if path.exists() else ""
    if not text:
        return None
    return text[text.rfind("Thread 0x") :]  # faulthandler writes the main thread last
