"""Steps of each rank over repetitions."""

from __future__ import annotations

from dataclasses import replace

from dpbench.analysis.rank_steps import rank_steps
from dpbench.records import TrialRecord
from tests.analysis.builders import rank, record, trial, window
from tests.analysis.sweeps import steps_of


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
