"""Losses over seeds, which repetitions of one seed say nothing of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpbench.analysis.fields.levels import COLUMNS, configuration_row
from dpbench.analysis.summary import summarize
from dpbench.records import TrialRecord
from dpbench.specs import WorkloadSpec
from tests.analysis.builders import loss_run


def seeded(seed: int, losses: list[float], repetition: int = 0) -> TrialRecord:
    workload = WorkloadSpec(architecture="mnist_cnn", dataset="digits", seed=seed)
    return loss_run(losses, workload=workload, repetition=repetition)


def falling(last: float) -> list[float]:
    return [2.0] * 10 + [last] * 10


def test_the_final_loss_has_its_spread_between_seeds() -> None:
    """Mean of 0.4, 0.5 and 0.6; t(2) × 0.1 ÷ √3 = 0.248."""
    records = [
        seeded(seed, falling(loss), repetition)
        for repetition in range(2)
        for seed, loss in enumerate((0.4, 0.5, 0.6))
    ]
    rows = summarize(records)
    assert len(rows) == 3
    for row in rows:
        found = row.final_loss_over_seeds
        assert found is not None
        assert found.value == pytest.approx(0.5)
        assert found.half_width == pytest.approx(4.3027 * 0.1 / 3**0.5, rel=1e-4)
        assert found.sample_size == 3
        exported = configuration_row(row)["final_loss_over_seeds_high"]
        assert exported == pytest.approx(0.7484, abs=1e-4)
    # A row still has the loss of its own seed.
    assert sorted(row.final_loss.value for row in rows if row.final_loss) == [0.4, 0.5, 0.6]


def test_the_time_to_a_loss_has_its_spread_between_seeds_if_all_got_there() -> None:
    early, late = [2.0] * 5 + [0.1] * 15, [2.0] * 10 + [0.1] * 10
    rows = summarize([seeded(0, early), seeded(1, late)], target_loss=0.5)
    reached = [row.time_to_loss.seconds for row in rows if row.time_to_loss]
    times = [seconds.value for seconds in reached if seconds]

    found = rows[0].time_to_loss_over_seeds
    assert found is not None
    assert found.value == pytest.approx((times[0] * times[1]) ** 0.5)
    assert found.sample_size == 2
    never = summarize([seeded(0, early), seeded(1, [2.0] * 20)], target_loss=0.5)
    assert [row.time_to_loss_over_seeds for row in never] == [None, None]


def test_one_seed_has_no_spread_however_often_it_ran() -> None:
    (row,) = summarize([seeded(0, falling(0.4), repetition) for repetition in range(3)])
    assert row.final_loss_over_seeds is None
    assert row.time_to_loss_over_seeds is None


def test_rows_that_differ_in_more_than_their_seed_are_not_mixed() -> None:
    first, second = seeded(0, falling(0.4)), seeded(1, falling(0.6))
    other = replace(second, trial=replace(second.trial, batch_size=64))
    assert all(row.final_loss_over_seeds is None for row in summarize([first, other]))


def test_tables_show_it_where_there_are_several_seeds() -> None:
    for key in ("final_loss_over_seeds", "time_to_loss_over_seeds_seconds"):
        assert COLUMNS[key].shown == "if measured"
