"""The noise of a machine: spreads by hand, their coverage by simulation, and what they support."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpbench.analysis.comparisons.calibration import calibrate, spread
from dpbench.errors import UsageError
from dpbench.records.trial import Status
from tests.analysis.builders import WRONG, record, run, runs, trial


def steady(variation: float, count: int) -> list[float]:
    """Throughputs whose logarithms have exactly this standard deviation (n - 1)."""
    signs = [1 if i % 2 else -1 for i in range(count)]
    return [100 * math.exp(variation * math.sqrt((count - 1) / count) * sign) for sign in signs]


def test_the_spread_has_the_interval_of_chi_square() -> None:
    found = spread(steady(0.01, 10))
    assert found.value == pytest.approx(0.01)
    assert found.low == pytest.approx(0.00688, abs=1e-5)  # √(9 / 19.023)
    assert found.high == pytest.approx(0.01826, abs=1e-5)  # √(9 / 2.7004)
    assert found.sample_size == 10


def test_the_interval_covers_the_true_spread() -> None:
    rng = np.random.default_rng(2)
    found = [spread(np.exp(rng.normal(scale=0.02, size=5)).tolist()) for _ in range(2000)]
    assert 0.93 <= np.mean([one.contains(0.02) for one in found]) <= 0.97


def test_it_says_which_tolerance_so_many_runs_support() -> None:
    (row,) = calibrate(runs(trial(), steady(0.01, 10)), {}).rows
    assert [round(100 * row.tolerance(n), 1) for n in (3, 5, 10, 20)] == [3.3, 2.1, 1.4, 0.9]
    assert [row.repetitions(t) for t in (0.01, 0.03, 0.10)] == [19, 4, 2]


def test_the_noisiest_row_decides() -> None:
    records = [
        *runs(trial(batch_size=16), steady(0.01, 10)),
        *runs(trial(batch_size=32), steady(0.05, 10)),
    ]
    found = calibrate(records, {})
    assert found.noisiest.label == "ddp/gloo ×1, batch 32"
    # At 5 %: 19 runs; the usual numbers are 5, 10, 20.
    assert found.supported == (0.05, 20)


def test_a_drift_does_not_separate_the_halves_of_the_rehearsal() -> None:
    drifting = [100 * 1.02**i for i in range(12)]
    found = calibrate(runs(trial(), drifting), {})
    assert found.rehearsal is not None
    assert found.rehearsal.repetitions == 6
    assert found.rehearsal.outcomes["regressed"] == 0


def test_the_rehearsal_counts_rows_in_both_directions() -> None:
    found = calibrate(runs(trial(), steady(0.001, 10)), {})
    assert found.rehearsal is not None
    assert found.rehearsal.outcomes == {"regressed": 0, "pass": 2, "inconclusive": 0}


def test_hopeless_noise_supports_nothing() -> None:
    found = calibrate(runs(trial(), steady(1.0, 8)), {})
    assert found.supported is None
    assert found.rehearsal is None


def test_too_few_repetitions_are_refused() -> None:
    with pytest.raises(UsageError, match=r"completed 4 repetitions \(the most is 1\)"):
        calibrate([run(trial(), 100.0)], {})


def test_repetitions_that_failed_leave_two_halves_of_the_others() -> None:
    records = runs(trial(), steady(0.01, 8))
    for number in (1, 2, 5, 6):  # all of them of one half, were they counted
        records[number] = record(trial(repetition=number), status=Status.FAILED)
    found = calibrate(records, {})
    assert found.rows[0].spread.sample_size == 4
    assert found.rehearsal is not None
    assert found.rehearsal.repetitions == 2


def test_a_trial_that_was_run_again_counts_once() -> None:
    records = runs(trial(), steady(0.01, 4))
    found = calibrate([run(trial(repetition=3), 1.0), *records], {})
    assert found.rows[0].spread.sample_size == 4
    assert found.rows[0].spread.value == pytest.approx(0.01)


def test_wrong_gradients_void_all_repetitions() -> None:
    wrong = run(trial(repetition=9), 100.0, verification=WRONG)
    with pytest.raises(UsageError, match="the most is 0"):
        calibrate([*runs(trial(), steady(0.01, 8)), wrong], {})


def test_the_rehearsal_is_the_check_that_is_recommended_not_one_of_pairs() -> None:
    shared = [100.0, 100.0, 110.0, 110.0] * 3
    found = calibrate(runs(trial(), shared), {})
    assert found.rehearsal is not None
    # Neighbours are equal, but --baseline compares two sweeps of such runs, which spread by 5 %.
    assert found.rehearsal.outcomes == {"regressed": 0, "pass": 0, "inconclusive": 2}
