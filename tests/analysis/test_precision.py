"""Which speeds are precise enough, and groups of runs in simulated ones."""

from __future__ import annotations

import numpy as np
import pytest

from dpbench.analysis.precision import too_wide, two_modes
from dpbench.records.trial import Status
from tests.analysis.builders import run, runs, trial


def test_only_what_has_a_speed_can_be_too_wide() -> None:
    precise, wide, alone = trial(), trial(batch_size=8), trial(batch_size=16)
    failed = run(trial(batch_size=4), 1.0, status=Status.FAILED)
    records = [*runs(precise, (2.0, 2.0)), *runs(wide, (1.0, 1.1)), *runs(alone, (2.0,)), failed]
    assert too_wide(records, 0.01) == {wide, alone}
    # ln 1 and ln 1.1 at one degree of freedom: up by exp(12.706 x 0.04766) - 1 = 83 %.
    assert too_wide(records, 0.83) == {wide, alone}
    assert too_wide(records, 0.84) == {alone}


@pytest.mark.parametrize(
    ("speeds", "found"),
    [
        ((100.0, 121.0, 101.0, 120.0, 119.0), (100.5, 120.0)),
        ((100.0, 101.0, 120.0), None),  # two are needed in each group
        ((100.0, 101.0, 102.0, 103.0, 150.0), None),  # one outlier
        ((100.0, 100.1, 102.0, 102.1), None),  # closer than 3 %
        ((100.0, 104.0, 110.0, 115.0), None),  # evenly apart
        ((100.0, 100.0, 100.0, 100.0), None),
    ],
)
def test_two_groups_of_runs(speeds: tuple[float, ...], found: tuple[float, float] | None) -> None:
    assert two_modes(speeds) == found


@pytest.mark.parametrize("count", [4, 6, 12, 27])
def test_normal_runs_rarely_look_like_two_groups(count: int) -> None:
    speeds = 100 * np.exp(0.05 * np.random.default_rng(count).standard_normal((2000, count)))
    assert sum(two_modes(row) is not None for row in speeds) / 2000 <= 0.016
