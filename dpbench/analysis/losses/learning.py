"""Learning metrics of each configuration: losses, their rates, the noise, equal budgets.

Deltas compare two single batches; the robust slope uses every step. Per second it is the same
number times steps/s, so the gain in speed and the loss of progress can be seen separately. Rates
are comparable only at the same level of the loss: any curve is steeper at its start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from dpbench import units
from dpbench.analysis import throughput
from dpbench.analysis.configuration import (
    ConfigurationSummary,
    by_configuration,
    usable_repetitions,
)
from dpbench.analysis.estimate import CONFIDENCE, Estimate, Floats, mean, product
from dpbench.analysis.losses.loss_curve import (
    LossCurve,
    are_one_sample,
    block_medians,
    is_finite,
    loss_curve,
    loss_delta_per_second,
    loss_delta_per_step,
    loss_mean,
    time_to_loss,
)
from dpbench.analysis.losses.loss_curve import losses as losses_of
from dpbench.analysis.steady_state import theil_sen
from dpbench.records.trial import TrialRecord
from dpbench.specs import TrialSpec

Losses = tuple[float, ...]
Learning = tuple[dict[str, Any], tuple[str, ...]]
"""Fields of a ConfigurationSummary, and notes."""


SLOPE_BLOCKS = ((100, 20), (20, 10))
"""(Fewest steps, number of blocks): for that many steps, this number of blocks, or a few more.

The interval of a Theil-Sen slope assumes independent points. At an autocorrelation of 0.5 and 400
steps, 20 blocks cover 0.94 and 100 blocks 0.90; of 100 steps, 20 blocks 0.93 and 100 single steps
0.76. Fewer steps than 20 have a slope without an interval.
"""


def learning(
    usable: Mapping[TrialSpec, Sequence[TrialRecord]],
    speeds: Mapping[TrialSpec, Estimate],
    target_loss: float | None,
    diverged: Mapping[TrialSpec, int],
) -> dict[TrialSpec, Learning]:
    """Learning metrics per configuration that has a speed; losses that are not finite are left out,
    with a note.

    `diverged` counts the repetitions that have no speed because their loss was not finite.
    """
    curves = {spec: [losses_of(record) for record in usable[spec]] for spec in speeds}
    finite = {
        spec: [run for run in runs if run and is_finite(run)] for spec, runs in curves.items()
    }
    slopes = dict(zip(finite, slopes_over_repetitions(list(finite.values())), strict=True))
    found = {}
    for spec, speed in speeds.items():
        records = usable[spec]
        values, notes = _deltas(records, curves[spec])
        values |= _rates(slopes[spec], speed, records[0])
        if target_loss is not None:
            values["time_to_loss"] = time_to_loss(records, target_loss, diverged=diverged[spec])
        notes = [f"{spec.label}: {note}" for note in notes]
        found[spec] = (values, tuple(notes))
    return found


def _deltas(
    records: Sequence[TrialRecord], curves: Sequence[Losses]
) -> tuple[dict[str, Any], list[str]]:
    """Metrics of the original benchmark, which compare the first and the last loss of each
    repetition."""
    runs = [(run, record) for run, record in zip(curves, records, strict=True) if run]
    finite = [(run, record) for run, record in runs if is_finite(run)]
    notes = []
    if bad := len(runs) - len(finite):
        repetitions = units.counted(bad, "completed repetition")
        notes.append(f"losses of {repetitions} are not finite and left out")
    if not finite:
        return {}, notes
    steps = sorted({len(run) for run, _ in finite})
    if len(steps) > 1:
        notes.append(
            f"its windows hold {steps[0]} to {steps[-1]} steps, and a final loss or a loss delta "
            "over different numbers of steps is none; see the slopes"
        )
        return {}, notes
    losses = [run for run, _ in finite]
    per_second = [
        loss_delta_per_second(run, throughput.elapsed_seconds(record)) for run, record in finite
    ]
    return {
        "loss_delta_per_step": loss_mean(
            [loss_delta_per_step(run) for run in losses], losses, unit="per step"
        ),
        "loss_delta_per_second": mean(per_second, unit="per s"),
        "final_loss": loss_mean([run[-1] for run in losses], losses),
    }, notes


def _rates(slope: Estimate | None, speed: Estimate, record: TrialRecord) -> dict[str, Any]:
    if slope is None:
        return {}
    items_per_step = throughput.items(record) / len(throughput.step_seconds(record))
    return {
        "loss_slope_per_step": slope,
        "loss_slope_per_second": loss_slope_per_second(slope, speed, items_per_step),
    }


def loss_slopes(runs: Sequence[Sequence[float]]) -> list[Estimate]:
    """Loss reduction per step of each run: minus the Theil-Sen slope over medians of blocks.

    Runs need at least two finite losses; those of equal length are processed together, as one call
    costs 0.4 ms. The interval is Kendall's, from the noise between blocks.
    """
    found: dict[int, Estimate] = {}
    by_steps: dict[int, list[int]] = {}
    for number, per_step in enumerate(runs):
        by_steps.setdefault(len(per_step), []).append(number)
    for steps, numbers in by_steps.items():
        count = throughput.batch_count(steps, SLOPE_BLOCKS) or steps
        length = steps // count
        medians = np.array([block_medians(runs[number], length) for number in numbers])
        columns = zip(*theil_sen(medians, CONFIDENCE), strict=True)
        known = steps >= SLOPE_BLOCKS[-1][0]
        for number, ends in zip(numbers, columns, strict=True):
            slope, low, high = (float(end) / length for end in ends)
            found[number] = Estimate(
                value=-slope,
                low=-high if known else None,
                high=-low if known else None,
                unit="per step",
                sample_size=medians.shape[1] if known else 1,
                basis="step batches" if known else "single value",
            )
    return [found[number] for number in range(len(runs))]


def slopes_over_repetitions(
    configurations: Sequence[Sequence[Sequence[float]]],
) -> list[Estimate | None]:
    """Loss reduction per step of each configuration, from the finite losses of its repetitions.

    The interval is a t interval over repetitions, unless all of them follow the same curve, as they
    do with the same seed: then they are one sample of the noise, and the interval is that within a
    run. None if no repetition has two losses.
    """
    usable = [[run for run in runs if len(run) > 1] for runs in configurations]
    samples = [runs[:1] if runs and are_one_sample(runs) else runs for runs in usable]
    each = iter(loss_slopes([run for runs in samples for run in runs]))
    slopes = [[next(each) for _ in runs] for runs in samples]
    return [
        mean([slope.value for slope in own], unit="per step")
        if len(own) > 1
        else next(iter(own), None)
        for own in slopes
    ]


def loss_slope_per_second(
    per_step: Estimate, throughput: Estimate, samples_per_step: float
) -> Estimate:
    """Loss reduction per step times steps per second, from throughput in samples per second."""
    steps_per_second = throughput.scaled(1 / samples_per_step, unit="steps/s")
    return product(per_step, steps_per_second, unit="per s")


Budget = Literal["samples", "seconds"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EqualBudget:
    """The largest budget that every run of every configuration reached, and the losses at it."""

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
        amount=amount,
        losses={spec: _loss_at(runs, budget, amount) for spec, runs in curves.items()},
    )


def with_equal_budgets(
    rows: Sequence[ConfigurationSummary], records: Iterable[TrialRecord]
) -> tuple[tuple[ConfigurationSummary, ...], tuple[str, ...]]:
    """Add losses at equal samples and at equal seconds to rows, of each work for itself; with notes
    on the amounts."""
    works: dict[str, dict[TrialSpec, list[TrialRecord]]] = {}
    for spec, group in by_configuration(records).items():
        works.setdefault(spec.work, {})[spec] = usable_repetitions(group)
    found: dict[TrialSpec, dict[str, Any]] = {}
    notes = []
    for work, usable in (works or {"": {}}).items():
        losses, note = _equal_budgets(usable)
        found |= losses
        notes.append(f"{work}: {note}" if work else note)
    return tuple(
        replace(row, **found.get(row.configuration, {})) if row.configuration else row
        for row in rows
    ), tuple(notes)


def _equal_budgets(
    usable: Mapping[TrialSpec, Sequence[TrialRecord]],
) -> tuple[dict[TrialSpec, dict[str, Any]], str]:
    """Both losses of each configuration, and a note on the amounts or why there are none."""
    by_samples = losses_at_equal_budget(usable, "samples")
    by_seconds = losses_at_equal_budget(usable, "seconds")
    if by_samples is None or by_seconds is None:
        return {}, "no losses at equal samples or seconds: fewer than two rows have any"
    found = {
        spec: {
            "loss_at_equal_samples": by_samples.losses.get(spec),
            "loss_at_equal_seconds": by_seconds.losses.get(spec),
        }
        for spec in usable
    }
    return found, (
        f"equal samples are {by_samples.amount:,.0f}, equal seconds "
        f"{units.seconds(by_seconds.amount)}: what every row reached in its timed window"
    )


def _axis(curve: LossCurve, budget: Budget) -> Floats:
    return curve.samples if budget == "samples" else curve.seconds


def _loss_at(curves: Sequence[LossCurve], budget: Budget, amount: float) -> Estimate | None:
    if any(_axis(curve, budget)[0] > amount for curve in curves):
        return None
    values = [float(np.interp(amount, _axis(curve, budget), curve.losses)) for curve in curves]
    if budget == "seconds":  # repetitions with the same curve differ in speed
        return loss_mean(values)
    return loss_mean(values, [curve.losses.tolist() for curve in curves])
