"""From the reports of all ranks to the outcome of their trial."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dpbench.launch.launcher import Outcome
from dpbench.records import RankMeasurement, Status, Verification
from dpbench.specs import TrialSpec
from dpbench.traits import IMPLEMENTATIONS

if TYPE_CHECKING:
    from dpbench.measure.trial import RankReport


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
