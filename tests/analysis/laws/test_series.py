"""Series from the records of a sweep."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import pytest

from dpbench.analysis.laws.series import series_of
from dpbench.records.environment import Accelerator, capture
from dpbench.records.trial import TrialRecord
from tests.analysis.builders import WRONG, run, trial


def weak(size: int, speed: float, **changes: object):
    return [
        run(trial("ddp", group_size=size, repetition=i, **changes), speed * (1 + 0.01 * i))
        for i in range(3)
    ]


def test_points_carry_the_noise_of_their_repetitions() -> None:
    (one,) = series_of([*weak(1, 100.0), *weak(2, 180.0)], {})
    assert one.label == "ddp/gloo, batch 32"
    assert one.group_sizes == (1, 2)
    point = one.points[1]
    assert point.step_seconds.value == pytest.approx(64 / 180 / 1.01, rel=1e-3)
    assert (point.step_seconds.sample_size, point.step_seconds.degrees_of_freedom) == (3, 2)
    assert one.throughput(point).squared_error == point.step_seconds.squared_error
    assert one.replicas_per_node is None


def test_what_differs_makes_another_series() -> None:
    records = [*weak(1, 100.0), *weak(1, 90.0, timed_steps=8), *weak(2, 180.0, batch_size=64)]
    labels = [one.label for one in series_of(records, {})]
    assert len(labels) == len(set(labels)) == 3
    assert "timed_steps" in labels[0]
    assert labels[2] == "ddp/gloo, batch 64"


def test_wrong_gradients_have_no_speed() -> None:
    wrong = replace(run(trial("ddp", group_size=2), 500.0), verification=WRONG)
    (one,) = series_of([*weak(1, 100.0), wrong], {})
    assert one.group_sizes == (1,)


def test_strong_scaling_has_the_steps_of_one_replica() -> None:
    records = [
        run(trial("ddp", group_size=size, batch_size=batch, scaling="strong"), 100.0)
        for size in (1, 2)
        for batch in (32, 64)
    ]
    one, other = series_of(records, {})
    assert one.label == "ddp/gloo, batch 32 in all"
    assert (
        [lone.batch_size for lone in one.lone_steps]
        == [32, 64]
        == [lone.batch_size for lone in other.lone_steps]
    )
    assert one.items(2) == 32


def test_a_machine_of_gpus_is_a_node() -> None:
    gpus = tuple(Accelerator(index=i, name="H100", memory_bytes=80 * 2**30) for i in range(8))
    environment = capture(accelerators=gpus)
    records = [
        run(trial("ddp", "nccl", size, devices=tuple(f"cuda:{i}" for i in range(size))), 100.0)
        for size in (1, 2)
    ]
    (one,) = series_of(records, {"e0": environment})
    assert one.group_sizes == (1, 2)
    assert one.replicas_per_node == 8


def test_a_step_of_a_model_that_counts_tokens_takes_as_long_as_it_took() -> None:
    records = [
        replace(run(trial("ddp", group_size=n), 1000.0 * n), item="tokens", items_per_sample=64)
        for n in (1, 2)
    ]
    (one,) = series_of(records, {})
    for point in one.points:
        (record,) = [r for r in records if r.trial.group_size == point.group_size]
        assert point.step_seconds.value == pytest.approx(mean_step(record))
        assert one.throughput(point).value == pytest.approx(point.speed.throughput.value)


def mean_step(record: TrialRecord) -> float:
    """Seconds of a step, by the clock of its rank."""
    return fmean(record.ranks[0].timed.step_seconds)
