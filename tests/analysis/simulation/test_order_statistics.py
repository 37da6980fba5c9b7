from __future__ import annotations

import pytest

from dpbench.analysis.simulation.order_statistics import rare_delay


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
        rare_delay(0.1, 0.5, 0)
    with pytest.raises(ValueError, match="0 to 1"):
        rare_delay(1.5, 0.5, 8)
