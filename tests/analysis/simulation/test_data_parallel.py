from __future__ import annotations

import numpy as np
import pytest

from dpbench.analysis.simulation.data_parallel import simulate_data_parallel
from tests.analysis.simulation.traces import step

TRACE = step([1.0, 2.0], [30, 70], optimizer=0.5)


def test_communication_is_linear_in_the_replicas_and_hidden_nowhere() -> None:
    for count in (1, 2, 8):
        found = simulate_data_parallel(
            TRACE, count, add=lambda nbytes: nbytes / 1000, replicate=lambda nbytes: nbytes / 500
        )
        assert found.step_seconds == pytest.approx(2.5 + (count - 1) * 0.3)
        assert found.exposed_seconds == pytest.approx(found.communication_seconds)


def test_every_micro_step_adds_up() -> None:
    found = simulate_data_parallel(TRACE, 3, add=lambda _: 0.1, accumulation_steps=4)
    assert found.step_seconds == pytest.approx(4 * (2.0 + 2 * 0.1) + 0.5)


def test_the_slowest_replica_decides() -> None:
    found = simulate_data_parallel(TRACE, 2, add=lambda _: 0.1, slowdown=np.array([1.0, 2.0]))
    assert found.step_seconds == pytest.approx([2.6, 5.1])


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="0 replicas"):
        simulate_data_parallel(TRACE, 0, add=lambda _: 0.1)
