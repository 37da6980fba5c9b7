"""The outcome of a trial from what its ranks measured, and another try of one that was killed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from time import monotonic
from typing import TypeVar

from dpbench.messages import say
from dpbench.records.trial import Outcome, RankMeasurement, Status, Timing, worst_verification
from dpbench.specs import TrialSpec
from dpbench.specs.traits import IMPLEMENTATIONS

M = TypeVar("M")


def attempt(label: str, run: Callable[[], Outcome[M]]) -> tuple[Outcome[M], Timing]:
    """The outcome of `run`, and when and how often it ran.

    It runs once more, and the user reads why, if something outside killed it, such as the kernel's
    out-of-memory killer.
    """
    started_utc = datetime.now(UTC).isoformat(timespec="milliseconds")
    started = monotonic()
    first_reason: str | None = None
    outcome = run()
    if outcome.killed:
        first_reason = outcome.reason or "it was ended from outside"
        say(f"{label}: {first_reason}; it is tried once more")
        outcome = run()
    timing = Timing(
        started_utc=started_utc,
        duration_seconds=monotonic() - started,
        tried_again_after=first_reason,
    )
    return outcome, timing


def outcome_of_ranks(
    trial: TrialSpec, ranks: Sequence[RankMeasurement]
) -> Outcome[RankMeasurement]:
    """The outcome: completed, unless gradients were wrong, replicas ended with different
    parameters, or the loss is not finite."""
    worst = worst_verification(ranks)
    one_process = IMPLEMENTATIONS[trial.implementation].one_process
    checksums = {rank.final_checksum for rank in ranks}
    losses = ((step, loss) for rank in ranks for step, loss in enumerate(rank.timed.losses, 1))
    diverged = [step for step, loss in losses if not math.isfinite(loss)]
    status, reason = Status.COMPLETED, None
    if worst is not None and not worst.passed:
        status = Status.WRONG_GRADIENTS
        reason = (
            f"gradients differ from one process by {worst.max_relative_error:.2g} relative "
            f"(tolerance {worst.tolerance:.0e}), worst in {worst.worst_parameter}"
            + ("; no layer may mix samples of different replicas" if one_process else "")
        )
    elif IMPLEMENTATIONS[trial.implementation].communicates and len(checksums) > 1:
        status = Status.WRONG_GRADIENTS
        reason = "replicas hold different parameters after the timed window"
    elif diverged:
        status = Status.DIVERGED
        reason = f"the loss is not finite at timed step {min(diverged)}"
    return Outcome(status=status, reason=reason, ranks=tuple(ranks))
