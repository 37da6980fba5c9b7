"""Losses at the last point that all runs reached."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpbench.analysis.equal_budget import losses_at_equal_budget, with_equal_budgets
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.summary import summarize
from dpbench.records import TrialRecord
from dpbench.specs import TrialSpec
from tests.analysis.builders import loss_run


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
    assert (found.budget, found.amount) == ("samples", 320.0)
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
