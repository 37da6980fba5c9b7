"""Every metric once, against numbers worked by hand: its reading, and its row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from dpbench.analysis import throughput
from dpbench.analysis.frames import row_frame, trial_frame
from dpbench.analysis.metrics import Metric
from dpbench.analysis.resources import peak_memory
from dpbench.analysis.rows import summarize
from dpbench.records.trial import MemoryPeaks, Status, TrialRecord, Window
from tests.analysis.builders import WRONG, rank, record, run, trial, two_ranks, window

VALUES = {
    "backend": "gloo",
    "group_size": 2,
    "batch_size": 32,
    "architecture": "mnist_cnn",
    "dataset": "digits",
    "seed": 0,
    "environment_id": "e0",
    "status": "completed",
    "verified": True,
    "duration_seconds": 2.5,
    "setup_seconds": 0.7,
    "elapsed_seconds": 0.6,
    "timed_steps": 3,
    "samples": 120,
    "images_per_second": 120 / 0.6,
    # The longest over ranks: 0.2, 0.2, 0.3.
    "step_seconds_p50": 0.2,
    "step_seconds_p95": 0.29,
    # With sync 0.6 / 3. Without it 0.3 / 3, and the slowest in each step is 0.1 as well.
    "exposed_communication_seconds": 0.1,
    # (0.1 - 0.05) ÷ 0.075 without synchronization.
    "rank_skew": 2 / 3,
    # Losses are weighted by samples, 3 : 1: 2.5, 1.5, 1.5.
    "initial_loss": 2.5,
    "final_loss": 1.5,
    "loss_delta": 1.0,
    "loss_delta_per_step": 1 / 3,
    "loss_delta_per_second": 1 / 0.6,
    "peak_memory_bytes": 300,
    "memory_imbalance": 1.5,
    "reduced_bytes_per_step": 404,
}


def values_of(one: TrialRecord) -> dict[str, Any]:
    found = trial_frame([one]).iloc[0]
    return {key: None if pd.isna(value) else value for key, value in found.items()}


def test_a_trial_has_every_value_of_the_published_records() -> None:
    """torch.rb's harness reports backend, world_size, batch_size, arch, dataset, elapsed,
    timed_steps, images, throughput, initial and final loss, and three deltas."""
    found = values_of(two_ranks())
    for key, value in VALUES.items():
        assert found[key] == pytest.approx(value), key


def test_only_a_completed_trial_has_a_speed_and_losses() -> None:
    for changes in ({"status": Status.DIVERGED}, {"verification": WRONG}):
        values = values_of(two_ranks(**changes))
        assert values["images_per_second"] is None
        assert values["final_loss"] is None
        assert values["peak_memory_bytes"] == 300
    diverged = values_of(run(trial(), 100.0, losses=(2.0, 1.0, float("nan"), float("inf"))))
    for key in ("final_loss", "loss_delta_per_step", "loss_delta_per_second", "memory_imbalance"):
        assert diverged[key] is None


def test_throughput_is_all_samples_by_the_slowest_rank() -> None:
    # 90 + 30 samples; the windows last 0.4 s and 0.6 s.
    tokens = two_ranks(item="tokens", items_per_sample=64)
    assert throughput.items_per_second(tokens) == pytest.approx(200.0 * 64)


@pytest.mark.parametrize(
    ("timed", "bare", "expected"),
    [
        # 0.24 / 2 and 0.18 / 2 s a step on the slowest rank.
        (([0.10, 0.10], [0.11, 0.13]), ([0.07, 0.07], [0.08, 0.10]), 0.03),
        (([0.10, 0.10], [0.11, 0.13]), ([0.07, 0.07],), None),
        # Noise can make it negative; it is not clipped.
        (([0.10],), ([0.15],), -0.05),
        # Of segments of five steps, the first, which is slow, does not count.
        (([1.0] * 5 + [0.12] * 15,), ([0.09] * 20,), 0.03),
    ],
)
def test_exposed_communication_is_the_difference_of_slowest_windows(
    timed: tuple[list[float], ...], bare: tuple[list[float], ...], expected: float | None
) -> None:
    def segments(steps: list[float]) -> Window:
        return replace(window(steps, 64), segment_steps=(5,) * (len(steps) // 5))

    without = [*map(segments, bare), None]
    ranks = [
        rank(number, segments(steps), unsynced=without[number])
        for number, steps in enumerate(timed)
    ]
    found = throughput.exposed_communication_seconds(record(trial(group_size=len(timed)), ranks))
    assert found == (None if expected is None else pytest.approx(expected))


def test_memory_of_devices_goes_before_memory_of_the_host() -> None:
    host = rank(0, window([0.1], 32), peaks=MemoryPeaks(host_bytes=900))
    device = rank(1, window([0.1], 32), peaks=MemoryPeaks(host_bytes=999, device_bytes=300))
    spec = trial(group_size=2)
    for ranks, expected in (([host, device], 300), ([host], 900)):
        assert peak_memory(record(spec, ranks)) == expected


def test_repetitions_are_combined_as_each_metric_says() -> None:
    records = [
        record(
            trial(group_size=2),
            [
                rank(
                    number,
                    window([0.1], 32),
                    unsynced=window([0.1 + slower * number], 32),
                    reduced_bytes_per_step=traffic,
                )
                for number in range(2)
            ],
            repetition=repetition,
        )
        for repetition, (slower, traffic) in enumerate([(0.1, 300), (0.0, 200)])
    ]
    found = row_frame(summarize(records)).iloc[0]
    # 0.1 ÷ 0.15 and 0.
    assert found["rank_skew"] == pytest.approx(1 / 3)
    assert found["reduced_bytes_per_step"] == 300


def test_a_metric_that_is_compared_is_refused_without_a_reading_of_trials() -> None:
    with pytest.raises(TypeError, match="gain: a metric that is compared needs `of_trial`"):
        Metric("gain", float, better="higher")


@pytest.mark.parametrize(
    "ranks",
    [
        [],
        [rank(0, window([], 0))],
        [rank(0, window([0.1], 0))],
        [rank(0, window([0.0, 0.0, 0.0, 0.1], 32))],
        [rank(0, window([0.1], 32)), rank(1, window([0.0], 32))],
        [rank(0, window([float("nan")], 32))],
    ],
)
def test_a_record_without_a_window_is_not_measured(ranks: list) -> None:
    assert not throughput.is_measured(record(trial(), ranks))
