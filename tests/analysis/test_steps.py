"""Statistics of single steps against numbers worked by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbench.analysis.estimate import LogMean
from dpbench.analysis.steps import autocorrelation, rank_steps, step_statistics, summarize_steps
from dpbench.analysis.throughput import batch_means
from dpbench.records.trial import TrialRecord
from tests.analysis.builders import correlated, rank, record, steps_of, trial, window


def test_autocorrelation() -> None:
    # Deviations -1, 1, -1, 1: -3 / 4. Deviations -1.5, -0.5, 0.5, 1.5: (0.75 - 0.25 + 0.75) / 5.
    values = np.array([[1.0, 3.0, 1.0, 3.0], [1.0, 2.0, 3.0, 4.0]])
    assert autocorrelation(values) == pytest.approx([-0.75, 0.25])


def test_equal_steps_have_no_autocorrelation() -> None:
    (window,) = step_statistics([np.full(50, 0.1)], [10])
    assert (window.autocorrelation, window.batch_autocorrelation) == (None, None)


def test_outliers_are_counted() -> None:
    # Median 1.0, median absolute deviation 0.1: the limit is 1 + 14.826 x 0.1 = 2.4826.
    steps = np.array([0.9, 1.0, 1.1] * 16 + [2.48, 2.49, 4.1])
    (window,) = step_statistics([steps], [10])
    assert (window.outliers, window.slowest_outlier) == (2, pytest.approx(4.1))


def test_what_the_clock_cannot_tell_is_no_outlier() -> None:
    (window,) = step_statistics([np.array([0.1] * 10 + [0.1 + 1e-10])], [10])
    assert (window.outliers, window.slowest_outlier) == (0, None)


def test_windows_of_any_length_keep_their_order() -> None:
    lengths = [3, 50, 3, 7]
    windows = [np.arange(1.0, length + 1) for length in lengths]
    alone = [step_statistics([window], [10])[0] for window in windows]
    assert step_statistics(windows, [10] * 4) == alone


def test_a_summary_pools_the_steps_and_shows_the_worst_verdict() -> None:
    down = np.concatenate([np.full(25, 2.0), np.tile([0.99, 1.01], 238)[:475]])
    even = np.tile([0.99, 1.01], 250)
    windows = [even, down]
    summary = summarize_steps(windows, step_statistics(windows, [10, 10]))
    assert (summary.count, summary.steady) == (1000, "warming up")
    assert (summary.outliers, summary.slowest_outlier) == (25, pytest.approx(2 / 1.01))
    # 487.5 steps of 0.99, as many of 1.01, 25 of 2: the places of 50, 95 and 99 % are these.
    quantiles = (summary.p50_seconds, summary.p95_seconds, summary.p99_seconds)
    assert quantiles == pytest.approx((1.01, 1.01, 2.0))


@pytest.mark.parametrize(
    ("phi", "length", "expected"),
    [(0.0, 400, 0.944), (0.5, 400, 0.944), (0.8, 400, 0.915), (0.8, 1600, 0.935)],
)
def test_batch_intervals_cover_the_mean(phi: float, length: int, expected: float) -> None:
    """The coverage of 20 batches under autocorrelation, where independent steps have 0.45."""
    steps = 1 + 0.02 * correlated(np.random.default_rng(7), 1500, length, phi)
    covered = sum(
        LogMean.of_batches(steps_mean, batches).estimate("s").contains(1.0)
        for steps_mean, batches in zip(
            steps.mean(axis=1).tolist(), batch_means(steps).tolist(), strict=True
        )
    )
    assert covered / 1500 == pytest.approx(expected, abs=0.02)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60), st.integers(0, 12))
def test_any_steps_have_statistics(steps: list[float], warmup_steps: int) -> None:
    window = np.array([*steps, 1.0])
    summary = summarize_steps([window], step_statistics([window], [warmup_steps]))
    assert 0 <= summary.outliers < len(window)
    assert summary.p50_seconds <= summary.p95_seconds <= summary.p99_seconds


def repetitions() -> list[TrialRecord]:
    return [
        steps_of("ddp", [0.02, 0.03], [0.01, 0.03], repetition=0),
        steps_of("ddp", [0.04, 0.05], [0.02, 0.02], repetition=1),
    ]


def test_a_rank_has_the_steps_of_all_repetitions_one_after_the_other() -> None:
    first, second = rank_steps(repetitions())
    assert (first.rank, second.rank) == (0, 1)
    assert first.timed.tolist() == [0.02] * 4 + [0.04] * 4
    assert second.alone is not None
    assert second.alone.tolist() == [0.03] * 4 + [0.02] * 4


def test_without_one_window_there_are_no_steps_without_synchronization() -> None:
    complete, other = repetitions()
    ranks = (replace(other.ranks[0], without_sync=None), other.ranks[1])
    first, second = rank_steps([complete, replace(other, ranks=ranks)])
    assert first.alone is None
    assert second.alone is not None


def test_outliers_are_late_among_the_steps_of_their_own_window() -> None:
    # In a window of 10 ms, 40 ms is late; in one of 40 ms it is not.
    steps = [0.010, 0.011] * 6 + [0.040]
    slow = [0.040, 0.041] * 6
    runs = [
        record(trial(repetition=number), [rank(0, window(own, 1))])
        for number, own in enumerate((steps, slow))
    ]
    (only,) = rank_steps(runs)
    assert only.outliers.tolist() == [0.040]


def test_a_rank_that_a_repetition_lacks_has_the_steps_of_the_others() -> None:
    complete, other = repetitions()
    first, second = rank_steps([complete, replace(other, ranks=other.ranks[:1])])
    assert len(first.timed) == 8
    assert second.timed.tolist() == [0.03] * 4
