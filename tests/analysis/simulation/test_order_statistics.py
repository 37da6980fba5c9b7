from __future__ import annotations

import numpy as np
import pytest

from dpbench.analysis.simulation.order_statistics import (
    exponential_maximum,
    normal_maximum,
    rare_delay,
)


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (1, 0.0),
        (2, 1 / np.sqrt(np.pi)),
        (3, 1.5 / np.sqrt(np.pi)),
        (4, 1.0294),
        (8, 1.4236),
        (16, 1.7660),
        (64, 2.3437),
        (256, 2.8269),
        (1024, 3.2482),
        (10_000, 3.8516),
    ],
)
def test_the_largest_of_n_normals(count: int, expected: float) -> None:
    assert normal_maximum(count) == pytest.approx(expected, abs=1e-4)


def test_the_largest_of_n_exponentials_is_a_harmonic_number() -> None:
    assert exponential_maximum(1) == pytest.approx(1.0)
    assert exponential_maximum(8) == pytest.approx(2.7179, abs=1e-4)
    assert exponential_maximum(1000) == pytest.approx(7.4855, abs=1e-4)


@pytest.mark.parametrize(
    ("count", "expected"), [(8, 0.004), (64, 0.031), (1000, 0.316), (10_000, 0.5)]
)
def test_a_rare_event_strikes_some_replica_of_many(count: int, expected: float) -> None:
    assert rare_delay(1e-3, 0.5, count) == pytest.approx(expected, abs=5e-4)


def test_events_that_always_or_never_strike() -> None:
    assert rare_delay(1.0, 0.5, 3) == 0.5
    assert rare_delay(0.0, 0.5, 3) == 0.0


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="1 or more"):
        normal_maximum(0)
    with pytest.raises(ValueError, match="0 to 1"):
        rare_delay(1.5, 0.5, 8)
