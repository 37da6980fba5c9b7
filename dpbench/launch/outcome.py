"""The outcome of a trial or of a measured collective, and the second try of one that was killed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import TYPE_CHECKING, Any

from dpbench.messages import say
from dpbench.records.trial import HostLoad, Status, Verification
from dpbench.specs import TrialSpec
from dpbench.specs.traits import IMPLEMENTATIONS

if TYPE_CHECKING:
    from dpbench.launch.failures import RankFailure
    from dpbench.measure.trial import RankReport


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The end of the processes of a trial, or of a measured collective; `reason` says why it did
    not complete."""

    status: Status
    reason: str | None = None
    killed: bool = False
    """True if something outside ended it, such as kill -9: another try may succeed."""
    cause: RankFailure | None = None
    """The first failure of a rank, if ranks failed."""
    ranks: tuple[Any, ...] = ()
    """Measurements of each rank."""
    item: str = "samples"
    items_per_sample: int = 1
    verification: Verification | None = None
    flops_per_item: float | None = None
    host_load: HostLoad | None = None


def attempt(label: str, run: Callable[[], Outcome]) -> tuple[Outcome, dict[str, Any]]:
    """The outcome of `run`, and the fields of its record on when and how often it ran.

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
    return outcome, {
        "started_utc": started_utc,
        "duration_seconds": monotonic() - started,
        "tried_again_after": first_reason,
    }


def outcome_of_reports(trial: TrialSpec, reports: Sequence[RankReport]) -> Outcome:
    """The outcome: completed, unless gradients were wrong, replicas ended with different
    parameters, or the loss is not finite."""
    proofs = [report.verification for report in reports if report.verification is not None]
    worst = max(proofs, key=lambda proof: proof.max_relative_error, default=None)
    ranks = tuple(report.measurement for report in reports if report.measurement is not None)
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
    return Outcome(
        status=status,
        reason=reason,
        item=reports[0].item,
        items_per_sample=reports[0].items_per_sample,
        ranks=ranks,
        verification=worst,
        flops_per_item=reports[0].flops_per_item,
    )
