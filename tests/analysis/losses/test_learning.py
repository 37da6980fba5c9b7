"""Slopes of losses, against lines, an oracle and simulated noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import theilslopes

from dpbench.analysis.estimate import Estimate
from dpbench.analysis.losses.learning import (
    loss_slope_per_second,
    loss_slopes,
    losses_at_equal_budget,
    slopes_over_repetitions,
    with_equal_budgets,
)
from dpbench.analysis.summary import summarize
from dpbench.records.trial import TrialRecord
from dpbench.specs import TrialSpec
from tests.analysis.builders import loss_run, run, trial


def loss_slope(per_step: Sequence[float]) -> Estimate:
    return loss_slopes([per_step])[0]


@given(
    steps=st.integers(2, 450),
    start=st.floats(-5, 5),
    fall=st.floats(-0.1, 0.1),
)
def test_a_straight_line_has_its_own_slope(steps: int, start: float, fall: float) -> None:
    found = loss_slope([start - fall * step for step in range(steps)])
    assert found.value == pytest.approx(fall, abs=1e-12)
    assert found.unit == "per step"


def test_a_falling_loss_is_a_positive_rate_and_a_few_bad_batches_change_little() -> None:
    losses = [2.0 - 0.001 * step for step in range(400)]
    for bad in range(0, 400, 10):
        losses[bad] = 50.0
    assert loss_slope(losses).value == pytest.approx(0.001, rel=0.02)


def test_the_interval_is_scipys_on_the_block_medians() -> None:
    losses = np.random.default_rng(0).normal(size=400) - 0.002 * np.arange(400)
    found = loss_slope(losses.tolist())
    medians = np.median(losses.reshape(20, 20), axis=1)
    theirs = theilslopes(medians, alpha=0.95)
    assert (found.sample_size, found.basis) == (20, "step batches")
    assert found.value == pytest.approx(-theirs.slope / 20)
    assert found.interval == pytest.approx((-theirs.high_slope / 20, -theirs.low_slope / 20))


@pytest.mark.parametrize(("steps", "blocks"), [(20, 10), (99, 11), (100, 20), (399, 21)])
def test_number_of_blocks(steps: int, blocks: int) -> None:
    assert loss_slope([float(-step) for step in range(steps)]).sample_size == blocks


def test_few_steps_have_no_interval() -> None:
    found = loss_slope([3.0, 2.0, 1.0])
    assert (found.value, found.interval, found.basis) == (1.0, None, "single value")


@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_the_interval_covers_the_true_slope(correlation: float) -> None:
    rng = np.random.default_rng(1)
    noise = rng.normal(size=(1000, 400))
    for step in range(1, 400):
        noise[:, step] += correlation * noise[:, step - 1]
    curves = noise - 0.01 * np.arange(400)
    covered = np.mean([loss_slope(curve).contains(0.01) for curve in curves])
    assert 0.92 <= covered <= 0.98


def test_repetitions_that_differ_have_the_interval_of_their_spread() -> None:
    runs = [[2.0 - fall * step for step in range(30)] for fall in (0.01, 0.02, 0.03)]
    (found,) = slopes_over_repetitions([runs])
    assert found is not None
    assert (found.value, found.basis, found.sample_size) == (
        pytest.approx(0.02),
        "repetitions",
        3,
    )
    # t = 4.303 at 2 degrees of freedom, times 0.01 ÷ √3.
    assert found.half_width == pytest.approx(4.303 * 0.01 / math.sqrt(3), rel=1e-3)


def test_equal_repetitions_do_not_pretend_to_certainty() -> None:
    losses = (2.0 - 0.01 * np.random.default_rng(0).random(50)).tolist()
    (found,) = slopes_over_repetitions([[losses] * 5])
    assert found == loss_slope(losses)
    assert found.half_width is not None
    assert found.half_width > 0


def test_runs_of_all_lengths_have_their_slopes_in_their_order() -> None:
    rng = np.random.default_rng(2)
    runs = [rng.normal(size=steps).tolist() for steps in (30, 3, 200, 30)]
    assert loss_slopes(runs) == [loss_slope(run) for run in runs]
    assert slopes_over_repetitions([[run] for run in runs]) == loss_slopes(runs)


def test_per_second_is_per_step_times_steps_per_second() -> None:
    """32 samples a step at 128 samples/s are 4 steps/s."""
    speed = Estimate(
        value=128.0, low=120.0, high=136.0, unit="samples/s", sample_size=3, basis="repetitions"
    )
    exact = Estimate(
        value=0.001, low=0.001, high=0.001, unit="per step", sample_size=20, basis="step batches"
    )
    found = loss_slope_per_second(exact, speed, samples_per_step=32)
    assert found.value == pytest.approx(0.004)
    assert found.interval == pytest.approx((0.001 * 120 / 32, 0.001 * 136 / 32))
    assert (found.unit, found.sample_size) == ("per s", 3)


def test_a_configuration_without_two_losses_has_no_slope() -> None:
    assert slopes_over_repetitions([[], [[1.0]]]) == [None, None]


def configurations(*groups: list[TrialRecord]) -> dict[TrialSpec, list[TrialRecord]]:
    return {group[0].trial: group for group in groups}


def values(losses: dict[TrialSpec, Estimate | None]) -> list[float | None]:
    return [None if loss is None else loss.value for loss in losses.values()]


# Steps of the same loss need no smoothing; the step up at the end is late and soft.
SLOW = [loss_run([2.0] * 10, step_seconds=0.2, group_size=1)]
FAST = [loss_run([2.0] * 5 + [1.0] * 15, step_seconds=0.05, group_size=2)]


def test_equal_samples_end_with_the_run_that_saw_fewest() -> None:
    found = losses_at_equal_budget(configurations(SLOW, FAST), "samples")
    assert found is not None
    assert found.amount == 320.0
    assert values(found.losses) == [2.0, 1.0]  # 10 steps each


def test_equal_seconds_end_with_the_run_that_was_over_first() -> None:
    found = losses_at_equal_budget(configurations(SLOW, FAST), "seconds")
    assert found is not None
    assert found.amount == pytest.approx(1.0)
    assert values(found.losses) == [2.0, 1.0]  # 5 steps against 20


def test_between_two_blocks_the_loss_is_interpolated() -> None:
    half = [loss_run([3.0, 1.0], samples_per_step=32, group_size=1)]
    other = [loss_run([2.0], samples_per_step=48, group_size=2)]
    found = losses_at_equal_budget(configurations(half, other), "samples")
    assert found is not None
    # Smoothed 3 at 32 samples and 2 at 64; 48 lies half way.
    assert values(found.losses) == [2.5, 2.0]


def test_a_run_whose_first_block_ends_too_late_has_no_loss() -> None:
    late = [loss_run([2.0, 2.0], step_seconds=5.0, group_size=1)]
    found = losses_at_equal_budget(configurations(late, FAST), "seconds")
    assert found is not None
    assert values(found.losses) == [None, 1.0]


def test_equal_repetitions_are_one_value_and_different_ones_have_an_interval() -> None:
    different = [loss_run([level] * 10, group_size=2) for level in (1.0, 1.2, 1.4)]
    found = losses_at_equal_budget(configurations(SLOW * 3, different), "samples")
    assert found is not None
    same, spread = found.losses.values()
    assert same is not None
    assert spread is not None
    assert (same.value, same.interval) == (2.0, None)
    assert spread.value == pytest.approx(1.2)
    assert spread.sample_size == 3


def test_one_configuration_is_no_comparison() -> None:
    assert losses_at_equal_budget(configurations(SLOW), "samples") is None


def test_rows_get_their_losses_and_a_note_says_at_what() -> None:
    fast = [loss_run([2.0 - 0.01 * step for step in range(100)], step_seconds=0.1)]
    slow = [loss_run([2.0 - 0.01 * step for step in range(100)], step_seconds=0.2)]
    slow = [replace(run, trial=replace(run.trial, implementation="torch-ddp")) for run in slow]
    rows, (note,) = with_equal_budgets(summarize([*fast, *slow]), [*fast, *slow])
    by_name = {row.implementation: row for row in rows}
    samples = [row.loss_at_equal_samples for row in rows]
    assert samples[0] == samples[1]
    at_equal_seconds = [
        by_name[n].loss_at_equal_seconds for n in (fast[0].trial.implementation, "torch-ddp")
    ]
    assert at_equal_seconds[0] is not None
    assert at_equal_seconds[1] is not None
    assert at_equal_seconds[0].value < at_equal_seconds[1].value - 0.3
    assert note.startswith("equal samples are 3,200, equal seconds 10 s")


def test_one_row_alone_has_nothing_to_be_compared_with() -> None:
    runs = [loss_run([2.0, 1.0])]
    rows, (note,) = with_equal_budgets(summarize(runs), runs)
    assert rows[0].loss_at_equal_samples is None
    assert "fewer than two rows" in note


def test_budgets_are_equal_within_a_work_and_not_across() -> None:
    """Strong scaling took fewer samples: that shortens no budget of weak scaling."""
    records = [
        run(
            trial("ddp", group_size=n, scaling=scaling, compared=("scaling",), timed_steps=40),
            speed * n,
            losses=[2 - 0.01 * k for k in range(40)],
        )
        for scaling, speed in (("weak", 1000.0), ("strong", 500.0))
        for n in (1, 2)
    ]
    filled, notes = with_equal_budgets(summarize(records), records)
    alone, (note,) = with_equal_budgets(summarize(records[:2]), records[:2])
    losses = {row.label: row.loss_at_equal_seconds for row in filled}
    assert {row.label: row.loss_at_equal_seconds for row in alone}.items() <= losses.items()
    assert notes[0] == note
    assert notes[1].startswith("strong: equal samples are ")
