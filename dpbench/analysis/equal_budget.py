"""Losses of several configurations after the same samples, and after the same seconds.

They show the gain of a faster implementation in equal time, and the loss of a larger global batch
with equal data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from dpbench import units
from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.loss_agreement import loss_mean
from dpbench.analysis.loss_curve import Floats, LossCurve, loss_curve
from dpbench.analysis.outcome import by_configuration, usable_repetitions
from dpbench.records import TrialRecord
from dpbench.specs import TrialSpec

Budget = Literal["samples", "seconds"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EqualBudget:
    """The largest budget that every run of every configuration reached, and the losses at it."""

    budget: Budget
    amount: float
    """Samples of all replicas, or seconds, since the timed window opened."""
    losses: Mapping[TrialSpec, Estimate | None]
    """Smoothed losses; None if the first block ended later than `amount`."""


def losses_at_equal_budget(
    configurations: Mapping[TrialSpec, Sequence[TrialRecord]], budget: Budget
) -> EqualBudget | None:
    """Compare the measured repetitions of configurations of one workload.

    A configuration without losses is left out; None if fewer than two are left.
    """
    curves = {
        spec: found
        for spec, records in configurations.items()
        if (found := [curve for curve in map(loss_curve, records) if curve is not None])
    }
    if len(curves) < 2:
        return None
    amount = min(float(_axis(curve, budget)[-1]) for runs in curves.values() for curve in runs)
    return EqualBudget(
        budget=budget,
        amount=amount,
        losses={spec: _loss_at(runs, budget, amount) for spec, runs in curves.items()},
    )


def with_equal_budgets(
    rows: Sequence[ConfigurationSummary], records: Iterable[TrialRecord]
) -> tuple[tuple[ConfigurationSummary, ...], tuple[str, ...]]:
    """Add losses at equal samples and at equal seconds to rows; with notes on the amounts."""
    groups = by_configuration(records)
    usable = {spec: usable_repetitions(group) for spec, group in groups.items()}
    by_samples = losses_at_equal_budget(usable, "samples")
    by_seconds = losses_at_equal_budget(usable, "seconds")
    if by_samples is None or by_seconds is None:
        return tuple(rows), ("no losses at equal samples or seconds: fewer than two rows have any",)
    filled = tuple(
        replace(
            row,
            loss_at_equal_samples=by_samples.losses.get(row.configuration),
            loss_at_equal_seconds=by_seconds.losses.get(row.configuration),
        )
        if row.configuration
        else row
        for row in rows
    )
    note = (
        f"equal samples are {by_samples.amount:,.0f}, equal seconds "
        f"{units.seconds(by_seconds.amount)}: what every row reached in its timed window"
    )
    return filled, (note,)


def _axis(curve: LossCurve, budget: Budget) -> Floats:
    return curve.samples if budget == "samples" else curve.seconds


def _loss_at(curves: Sequence[LossCurve], budget: Budget, amount: float) -> Estimate | None:
    if any(_axis(curve, budget)[0] > amount for curve in curves):
        return None
    values = [float(np.interp(amount, _axis(curve, budget), curve.losses)) for curve in curves]
    if budget == "seconds":  # repetitions with the same curve differ in speed
        return loss_mean(values)
    return loss_mean(values, [curve.losses.tolist() for curve in curves])
