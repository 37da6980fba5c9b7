"""What a sweep asks of a launcher, and the outcome it gets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from dpbench.records import HostLoad, RankMeasurement, Status, Verification
from dpbench.specs import TrialSpec
from dpbench.traits import IMPLEMENTATIONS

if TYPE_CHECKING:
    from dpbench.measure.trial import RankReport


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception of a rank, as values rather than in a sentence."""

    rank: int
    kind: str
    """Type of the exception."""
    text: str
    """First line of its message."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How the processes of one trial ended; `reason` says why when not completed."""

    status: Status
    reason: str | None = None
    item: str = "samples"
    items_per_sample: int = 1
    ranks: tuple[RankMeasurement, ...] = ()
    verification: Verification | None = None
    flops_per_item: float | None = None
    host_load: HostLoad | None = None
    raised: Raised | None = None
    """The exception of a rank that ended it, where one did."""
    from_outside: bool = False
    """Something that is not the trial's ended it, as kill -9 does: another try may do better."""


class Launcher(Protocol):
    """Runs trials one at a time; never raises for what a trial does."""

    def unusable_reason(self, trial: TrialSpec) -> str | None:
        """Why this machine cannot run the trial; None if it can."""
        ...

    def run(self, trial: TrialSpec, time_limit_seconds: float) -> Outcome:
        """Runs the trial in processes of its own and leaves none behind."""
        ...


def judge(trial: TrialSpec, reports: Sequence[RankReport]) -> Outcome:
    """Completed, unless gradients were wrong, replicas ended apart or the loss is not finite."""
    worst = max((report.verification for report in reports), key=lambda v: v.max_relative_error)
    ranks = tuple(report.measurement for report in reports if report.measurement is not None)
    status, reason = _verdict(trial, worst, ranks)
    return Outcome(
        status=status,
        reason=reason,
        item=reports[0].item,
        items_per_sample=reports[0].items_per_sample,
        ranks=ranks,
        verification=worst,
        flops_per_item=reports[0].flops_per_item,
    )


def _verdict(
    trial: TrialSpec, verification: Verification, ranks: Sequence[RankMeasurement]
) -> tuple[Status, str | None]:
    if not math.isfinite(verification.max_relative_error):
        return Status.WRONG_GRADIENTS, (
            f"in {verification.dtype} a gradient is no finite number, or missing on one side, "
            f"first that of {verification.worst_parameter}; look at the loss, at the samples, "
            "and for parameters that the loss does not use"
        )
    if not verification.passed:
        return Status.WRONG_GRADIENTS, (
            f"gradients differ from one process by {verification.max_relative_error:.2g} relative "
            f"(tolerance {verification.tolerance:.0e}), worst in {verification.worst_parameter}; "
            "the loss must be the mean over the batch, and no layer may mix its samples"
            + (", nor may the step draw random numbers" if trial.workload.step else "")
        )
    if IMPLEMENTATIONS[trial.implementation].communicates and _drifted_apart(ranks):
        return Status.WRONG_GRADIENTS, "replicas hold different parameters after the timed window"
    step = _first_non_finite_step(ranks)
    if step is not None:
        return Status.DIVERGED, f"the loss is not finite at timed step {step + 1}"
    return Status.COMPLETED, None


def _drifted_apart(ranks: Sequence[RankMeasurement]) -> bool:
    return len({rank.final_checksum for rank in ranks}) > 1


def _first_non_finite_step(ranks: Sequence[RankMeasurement]) -> int | None:
    steps = [
        step
        for rank in ranks
        for step, loss in enumerate(rank.timed.losses)
        if not math.isfinite(loss)
    ]
    return min(steps, default=None)
