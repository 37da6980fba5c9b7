"""Runs that fall into two groups are seen, and normal ones are not taken for such."""

from __future__ import annotations

import numpy as np
import pytest

from dpbench.analysis.summary import summarize
from dpbench.analysis.two_modes import two_modes
from tests.analysis.builders import runs, trial


def test_two_groups_are_told_with_their_means() -> None:
    assert two_modes([100.0, 121.0, 101.0, 120.0, 119.0]) == (100.5, 120.0)


@pytest.mark.parametrize(
    "speeds",
    [
        (100.0, 101.0, 120.0),  # two are needed in each group
        (100.0, 101.0, 102.0, 103.0, 150.0),  # one outlier
        (100.0, 100.1, 102.0, 102.1),  # closer than 3 %
        (100.0, 104.0, 110.0, 115.0),  # evenly apart
        (100.0, 100.0, 100.0, 100.0),
    ],
)
def test_one_group_and_outliers_are_no_two_groups(speeds: tuple[float, ...]) -> None:
    assert two_modes(speeds) is None


@pytest.mark.parametrize("count", [4, 5, 6, 8, 12, 20, 27])
def test_normal_runs_rarely_look_like_two_groups(count: int) -> None:
    generator = np.random.default_rng(count)
    speeds = 100 * np.exp(0.05 * generator.standard_normal((4000, count)))
    assert sum(two_modes(row) is not None for row in speeds) / 4000 <= 0.016


@pytest.mark.parametrize("count", [6, 8, 12, 20])
def test_groups_that_are_far_apart_are_seen_however_many_runs_there_are(count: int) -> None:
    """10 % apart, and runs of a group differ by 0.5 %."""
    generator = np.random.default_rng(count)
    groups = np.where(np.arange(count) % 2, 110.0, 100.0)
    speeds = groups * np.exp(0.005 * generator.standard_normal((1000, count)))
    assert sum(two_modes(row) is not None for row in speeds) / 1000 >= 0.95


def test_a_row_says_that_its_runs_fall_into_two_groups() -> None:
    (row,) = summarize(runs(trial(), [1000.0, 1200.0, 1001.0, 1201.0]))
    assert any(
        "its runs fall into two groups, about 1,000 and 1,200 images/s" in note
        for note in row.notes
    )
    (even,) = summarize(runs(trial(), [1000.0, 1010.0, 990.0, 1005.0]))
    assert not any("two groups" in note for note in even.notes)
