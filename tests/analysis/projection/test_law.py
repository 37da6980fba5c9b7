"""The law through measured step times, worked by hand."""

from __future__ import annotations

import math

import pytest

from dpbench.analysis.projection.law import FLAT, continued, crosses

RISE = math.log(1.2)


@pytest.mark.parametrize(
    ("sizes", "seconds", "n", "expected"),
    [
        # A third of the mean rise per doubling goes on, and half of that after it.
        ((1, 2), [1, 1.2], 4, RISE * (1 + 1 / 3)),
        ((1, 2), [1, 1.2], 8, RISE * (1 + 1 / 3 + 1 / 6)),
        # Twice 1.1 on the way, although all of it came with the first doubling.
        ((1, 2, 4), [1, 1.21, 1.21], 8, math.log(1.21) + math.log(1.1) / 3),
        # A step that became shorter is not expected to become still shorter.
        ((1, 2), [1, 0.9], 8, math.log(0.9)),
    ],
)
def test_beyond_the_data_the_mean_rise_goes_on_damped(
    sizes: tuple[int, ...], seconds: list[float], n: int, expected: float
) -> None:
    assert continued(sizes, seconds, n).log_seconds == pytest.approx(expected)


def test_the_noise_of_the_first_and_last_size_counts_by_its_weight() -> None:
    beyond = continued((1, 2), [1, 1.2], 4)
    assert beyond.noise(0.3, 0) == pytest.approx(0.1)
    assert beyond.noise(0, 0.3) == pytest.approx(0.4)


def test_errors_grow_with_the_root_of_the_steepness_and_of_the_doublings() -> None:
    assert continued((1, 2), [1, 1], 4).scale == pytest.approx(math.sqrt(FLAT))
    assert continued((1, 2), [1, 1.2], 8).scale == pytest.approx(math.sqrt((FLAT + RISE) * 2))


def test_only_a_group_that_fits_no_longer_into_the_node_crosses_its_boundary() -> None:
    assert crosses((1, 2, 8), 16, 8)
    assert not crosses((1, 2, 4), 8, 8)
    assert not crosses((8, 16), 32, 8), "a group of two nodes was measured"
    assert not crosses((1, 2, 8), 16, None), "not known"
