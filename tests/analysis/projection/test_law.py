"""The law through measured step times, worked by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from dpbench.analysis.projection.law import FLAT, continued, crosses, refusal

RISE = math.log(1.2)


def test_beyond_the_data_a_third_of_the_mean_rise_goes_on_and_half_of_that_after_it() -> None:
    def log_seconds(n: int) -> float:
        return continued((1, 2), [1, 1.2], n).log_seconds

    assert log_seconds(4) == pytest.approx(RISE * (1 + 1 / 3))
    assert log_seconds(8) == pytest.approx(RISE * (1 + 1 / 3 + 1 / 6))


def test_the_rise_is_the_mean_over_all_measured_doublings() -> None:
    """Twice 1.1 on the way, although all of it came with the first doubling."""
    found = continued((1, 2, 4), [1, 1.21, 1.21], 8)
    assert found.log_seconds == pytest.approx(math.log(1.21) + math.log(1.1) / 3)


def test_a_step_that_became_shorter_is_not_expected_to_become_still_shorter() -> None:
    assert continued((1, 2), [1, 0.9], 8).log_seconds == pytest.approx(math.log(0.9))


def test_between_measured_sizes_the_logarithm_is_interpolated() -> None:
    found = continued((1, 2, 8), [1, 1.1, 1.3], 4)
    assert math.exp(found.log_seconds) == pytest.approx(math.sqrt(1.1 * 1.3))
    assert found.weights == pytest.approx((0, 0.5, 0.5))


def test_the_noise_of_each_measured_size_counts_by_its_weight() -> None:
    """Between 2 and 8, half of the noise of either: that of the others does not matter."""
    between = continued((1, 2, 8), [1, 1.1, 1.3], 4)
    assert between.noise((9, 0.04, 0.03)) == pytest.approx(0.025)
    beyond = continued((1, 2), [1, 1.2], 4)
    assert beyond.noise((0.3, 0)) == pytest.approx(0.1)
    assert beyond.noise((0, 0.3)) == pytest.approx(0.4)


def test_errors_grow_with_the_root_of_the_steepness_and_of_the_doublings() -> None:
    assert continued((1, 2), [1, 1], 4).scale == pytest.approx(math.sqrt(FLAT))
    assert continued((1, 2), [1, 1.2], 8).scale == pytest.approx(math.sqrt((FLAT + RISE) * 2))


@pytest.mark.parametrize(
    ("sizes", "n", "words"),
    [
        ((1, 2, 4), 17, "more than 4 × the largest measured group size (4)"),
        ((2, 4), 1, "below the smallest measured group size (2)"),
    ],
)
def test_no_size_is_predicted_below_or_far_beyond_the_data(
    sizes: Sequence[int], n: int, words: str
) -> None:
    assert words in (refusal(sizes, n) or "")


def test_only_a_group_that_fits_no_longer_into_the_node_crosses_its_boundary() -> None:
    assert crosses((1, 2, 8), 16, 8)
    assert not crosses((1, 2, 4), 8, 8)
    assert not crosses((8, 16), 32, 8), "a group of two nodes was measured"
    assert not crosses((1, 2, 8), 16, None), "not known"
