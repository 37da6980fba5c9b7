"""Every metric once, against numbers worked by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpbench.analysis import throughput
from dpbench.analysis.losses import loss_curve
from dpbench.analysis.resources import collectives_per_step, peak_memory, reduced_bytes_per_step
from dpbench.errors import StoreError
from dpbench.records.trial import TrialRecord
from tests.analysis.builders import rank, record, run, trial, window


def two_ranks():
    return record(
        trial(group_size=2),
        [
            rank(0, window([0.1, 0.2, 0.1], 90, [2.0, 1.5, 1.0])),
            rank(1, window([0.2, 0.1, 0.3], 30, [4.0, 1.5, 3.0])),
        ],
    )


def test_throughput_is_all_samples_by_the_slowest_rank() -> None:
    # 90 + 30 samples; the windows last 0.4 s and 0.6 s.
    assert throughput.throughput(two_ranks()) == pytest.approx(200.0)
    assert throughput.elapsed_seconds(two_ranks()) == pytest.approx(0.6)


def test_a_sample_of_several_items_counts_as_so_many() -> None:
    tokens = replace(two_ranks(), item="tokens", items_per_sample=64)
    assert throughput.items(tokens) == 120 * 64
    assert throughput.throughput(tokens) == pytest.approx(200.0 * 64)
    assert step_seconds(tokens) == step_seconds(two_ranks())


def step_seconds(found: TrialRecord) -> list[float]:
    return list(throughput.step_seconds(found))


def test_step_seconds_are_the_longest_over_ranks() -> None:
    assert throughput.step_seconds(two_ranks()) == pytest.approx([0.2, 0.2, 0.3])


def test_exposed_communication_is_the_difference_of_slowest_windows() -> None:
    spec = trial(group_size=2)
    ranks = [
        rank(0, window([0.10, 0.10], 64), without_sync=window([0.07, 0.07], 64)),
        rank(1, window([0.11, 0.13], 64), without_sync=window([0.08, 0.10], 64)),
    ]
    # With sync 0.24 / 2 = 0.12 s a step, without 0.18 / 2 = 0.09 s.
    exposed = throughput.exposed_communication_seconds(record(spec, ranks))
    assert exposed == pytest.approx(0.03)
    ranks[1] = replace(ranks[1], without_sync=None)
    assert throughput.exposed_communication_seconds(record(spec, ranks)) is None


def test_exposed_communication_may_be_negative() -> None:
    measured = rank(0, window([0.1], 32), without_sync=window([0.15], 32))
    exposed = throughput.exposed_communication_seconds(record(trial(), [measured]))
    assert exposed == pytest.approx(-0.05)


def test_rank_skew() -> None:
    # Mean steps without synchronization: 1, 2, 4 -> (4 - 1) / 2.
    ranks = [
        rank(n, window([5.0], 32), without_sync=window([s], 32)) for n, s in enumerate((1, 2, 4))
    ]
    assert throughput.rank_skew(record(trial(group_size=3), ranks)) == pytest.approx(1.5)
    assert throughput.rank_skew(record(trial(), ranks[:1])) is None


def test_the_slowest_rank_is_found_where_ranks_do_not_wait_for_each_other() -> None:
    spec = trial(group_size=2)
    # With synchronization both take as long; without it rank 0 is the slower one.
    ranks = [
        rank(0, window([0.3], 32), without_sync=window([0.2], 32)),
        rank(1, window([0.3], 32), without_sync=window([0.1], 32)),
    ]
    assert throughput.slowest_rank(record(spec, ranks)) == 0
    assert throughput.slowest_rank(record(spec, ranks[:1])) is None
    # One rank without that window: the windows with synchronization are compared, on all ranks.
    ranks[0] = rank(0, window([0.3], 32))
    ranks[1] = replace(ranks[1], timed=window([0.4], 32))
    assert throughput.slowest_rank(record(spec, ranks)) == 1
    assert throughput.rank_skew(record(spec, ranks)) == pytest.approx(0.1 / 0.35)


def test_traffic_is_that_of_the_rank_that_sends_most() -> None:
    ranks = [
        rank(0, window([0.1], 32), reduced_bytes_per_step=400, collectives_per_step=2.5),
        rank(1, window([0.1], 32), reduced_bytes_per_step=404),
    ]
    records = [record(trial(group_size=2), ranks), record(trial(), [rank(0, window([0.1], 32))])]
    assert reduced_bytes_per_step(records) == 404
    assert collectives_per_step(records) == 2.5
    assert reduced_bytes_per_step(records[1:]) is None


def test_losses_are_weighted_by_samples() -> None:
    # Weights 90 and 30: (3 x 2.0 + 4.0) / 4 = 2.5; 1.5; (3 x 1.0 + 3.0) / 4 = 1.5.
    assert loss_curve.losses(two_ranks()) == pytest.approx((2.5, 1.5, 1.5))


def test_loss_deltas_have_the_published_definitions() -> None:
    losses = [2.0, 1.5, 1.0]
    assert loss_curve.loss_delta(losses) == 1.0
    assert loss_curve.loss_delta_per_step(losses) == pytest.approx(0.3333, abs=1e-4)
    assert loss_curve.loss_delta_per_second(losses, 0.5) == 2.0


def test_ranks_with_different_numbers_of_losses_are_an_error() -> None:
    ranks = [rank(0, window([0.1], 32, [1.0])), rank(1, window([0.1], 32, [1.0, 2.0]))]
    with pytest.raises(StoreError, match="recorded 1 and 2 losses"):
        loss_curve.losses(record(trial(group_size=2), ranks))


def test_memory_of_devices_goes_before_memory_of_the_host() -> None:
    host = rank(0, window([0.1], 32), peak_host_memory_bytes=900)
    device = rank(1, window([0.1], 32), peak_device_memory_bytes=300, peak_host_memory_bytes=999)
    spec = trial(group_size=2)
    both = peak_memory([record(spec, [host, device])])
    assert both is not None
    assert (both.bytes, both.kind) == (300, "device")
    only_host = peak_memory([record(spec, [host])])
    assert only_host is not None
    assert (only_host.bytes, only_host.kind) == (900, "host")
    assert peak_memory([record(spec, [rank(0, window([0.1], 32))])]) is None


@pytest.mark.parametrize(("steps", "batches"), [(19, 0), (20, 10), (199, 10), (200, 20)])
def test_number_of_step_batches(steps: int, batches: int) -> None:
    assert len(throughput.batch_means(np.ones(steps))) == batches


def test_a_single_repetition_has_the_interval_of_its_batches() -> None:
    steps = [0.1, 0.2] * 10
    single = record(trial(timed_steps=20), [rank(0, window(steps, 600))])
    speed = throughput.throughput_mean([single])
    assert speed.value == pytest.approx(200.0)
    assert (speed.basis, speed.sample_size) == ("step batches", 10)
    # Every batch of two steps is equal.
    assert speed.squared_error == pytest.approx(0.0)


def test_few_steps_of_a_single_repetition_have_no_interval() -> None:
    speed = throughput.throughput_mean([run(trial(), 100.0)])
    assert (speed.basis, speed.squared_error) == ("single value", None)


@pytest.mark.parametrize(
    "ranks",
    [
        [],
        [rank(0, window([], 0))],
        [rank(0, window([0.1], 0))],
        [rank(0, window([0.0], 32))],
        [rank(0, window([0.1], 32)), rank(1, window([0.0], 32))],
        [rank(0, window([float("nan")], 32))],
    ],
)
def test_a_record_without_a_window_is_not_measured(ranks: list) -> None:
    assert not throughput.is_measured(record(trial(), ranks))
