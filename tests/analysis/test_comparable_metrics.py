"""The registry of what can be compared: each metric reads what it says from one record."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpbench.analysis.fields.levels import METRICS
from dpbench.records.trial import Status, TrialRecord
from tests.analysis.builders import WRONG, rank, record, run, trial, window


def measured() -> TrialRecord:
    """Two ranks, three steps; the slower rank takes 0.6 s for 120 samples of both."""
    return record(
        trial(group_size=2),
        [
            rank(0, window([0.1, 0.2, 0.1], 90, [2.0, 1.5, 1.0]), peak_host_memory_bytes=100),
            rank(
                1,
                window([0.2, 0.1, 0.3], 30, [2.0, 1.5, 1.0]),
                setup_seconds=0.7,
                peak_host_memory_bytes=300,
            ),
        ],
        duration_seconds=2.5,
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("images_per_second", 200.0),
        ("step_seconds_p50", 0.2),
        ("step_seconds_p95", 0.29),
        ("step_seconds_p99", 0.298),
        ("peak_memory_bytes", 300.0),
        ("final_loss", 1.0),
        ("loss_delta_per_step", 1 / 3),
        ("loss_delta_per_second", 1 / 0.6),
        ("setup_seconds", 0.7),
        ("duration_seconds", 2.5),
        ("exposed_communication_seconds", None),
    ],
)
def test_one_record(key: str, value: float | None) -> None:
    got = METRICS[key].run(measured())
    assert got is None if value is None else got == pytest.approx(value)


def test_percentiles_are_those_of_numpy() -> None:
    steps = np.random.default_rng(3).uniform(0.1, 0.2, size=37)
    single = record(trial(), [rank(0, window(steps.tolist(), 10))])
    for percent in (50, 95, 99):
        got = METRICS[f"step_seconds_p{percent}"].run(single)
        assert got == pytest.approx(np.percentile(steps, percent))


def test_losses_that_are_not_finite_are_not_measured() -> None:
    diverged = run(trial(), 100.0, losses=(2.0, 1.0, float("nan"), float("inf")))
    for key in ("final_loss", "loss_delta_per_step", "loss_delta_per_second"):
        assert METRICS[key].run(diverged) is None


def test_efficiency_is_against_one_replica_of_the_same_repetition() -> None:
    records = [
        run(trial(group_size=size, repetition=repetition), speed)
        for size, repetition, speed in ((1, 0, 100.0), (1, 1, 200.0), (2, 0, 180.0), (2, 1, 300.0))
    ]
    read = METRICS["efficiency"].reader(records)
    assert [read(r) for r in records] == [None, None, pytest.approx(0.9), pytest.approx(0.75)]
    assert METRICS["efficiency"].reader(records[1:])(records[2]) is None


def test_efficiency_has_no_baseline_in_what_failed_diverged_or_was_wrong() -> None:
    two = run(trial(group_size=2), 180.0)
    for changes in ({"status": Status.DIVERGED}, {"verification": WRONG}):
        records = [run(trial(), 100.0, **changes), two]
        assert METRICS["efficiency"].reader(records)(two) is None
    void = [run(trial(), 100.0), run(trial(repetition=1), 100.0, verification=WRONG), two]
    assert METRICS["efficiency"].reader(void)(two) is None


def test_a_trace_in_the_first_repetition_does_not_hide_its_baseline() -> None:
    one, two = run(trial(trace_steps=3), 100.0), run(trial(group_size=2), 150.0)
    assert METRICS["efficiency"].reader([one, two])(two) == pytest.approx(0.75)


def test_additive_metrics_are_parts_of_something_positive() -> None:
    whole = replace(measured(), ranks=measured().ranks)
    parts = {key: m.reference(whole) for key, m in METRICS.items() if m.reference is not None}
    assert parts == {
        "exposed_communication_seconds": pytest.approx(0.2),
        "loss_delta_per_step": pytest.approx(2 / 3),
        "loss_delta_per_second": pytest.approx(2 / 0.6),
    }
    assert all(METRICS[key].additive and METRICS[key].reference_words for key in parts)
