"""One simulated step against sums by hand."""

from __future__ import annotations

import numpy as np
import pytest

from dpbench.analysis.projection.step import (
    StepTrace,
    buckets,
    simulated_seconds,
    step_trace,
)
from dpbench.errors import UsageError
from dpbench.units import MEBI
from tests.analysis.projection.sweeps import gradient_trace

MIB = float(MEBI)


def trace(*sizes: float, buffers: int = 0) -> StepTrace:
    """Gradients of so many MiB at 1, 2, … seconds; backward ends with the last, then 0.5 s."""
    count = len(sizes)
    return StepTrace(
        ready_seconds=np.arange(1.0, count + 1),
        gradient_bytes=np.array(sizes) * MIB,
        backward_end_seconds=float(count),
        step_seconds=count + 0.5,
        buffer_bytes=buffers,
    )


def test_a_trace_holds_medians_in_the_order_in_which_gradients_are_ready() -> None:
    found = step_trace([gradient_trace(0.01), gradient_trace(0.02), gradient_trace(0.03)])
    assert found.step_seconds == pytest.approx(0.02)
    assert found.backward_end_seconds == pytest.approx(0.015)
    assert list(found.ready_seconds) == sorted(found.ready_seconds)
    assert found.ready_seconds[0] == pytest.approx(0.02 * (0.25 + 1 / 16))
    with pytest.raises(UsageError, match="different gradients"):
        step_trace([gradient_trace(), gradient_trace(gradient_bytes=(1,) * 8)])


@pytest.mark.parametrize(
    ("sizes", "cap", "expected"),
    [
        # The first bucket closes at 1 MiB, the others at 25 MiB, the last one with what is left.
        ((0.5, 0.5, 20, 10, 1), None, [(2, 1), (4, 30), (5, 1)]),
        ((2, 30), None, [(1, 2), (2, 30)]),
        ((1, 1, 1), 2.0, [(2, 2), (3, 1)]),
        ((1, 1, 1), 1000.0, [(3, 3)]),
    ],
)
def test_a_bucket_is_closed_by_the_gradient_that_fills_it(
    sizes: tuple[float, ...], cap: float | None, expected: list[tuple[int, float]]
) -> None:
    assert buckets(trace(*sizes), cap) == [(ready, nbytes * MIB) for ready, nbytes in expected]


@pytest.mark.parametrize(
    ("cost", "expected"),
    [
        (0.0, 4.5),
        (0.9, 4.5 + 0.9),  # only the last bucket is exposed
        (1.0, 4.5 + 1.0),
        (1.5, 4.5 + (1 + 4 * 1.5 - 4)),  # each waits for the one before it
    ],
)
def test_communication_that_outlasts_the_backward_pass_is_exposed(
    cost: float, expected: float
) -> None:
    found = simulated_seconds(trace(1, 1, 1, 1), lambda nbytes: cost * (nbytes > 0), cap_mb=1)
    assert found == pytest.approx(expected)


def test_only_the_last_micro_step_communicates_and_buffers_are_sent_before_it() -> None:
    found = simulated_seconds(
        trace(1, 1, buffers=MEBI), lambda nbytes: nbytes / MIB, cap_mb=1, accumulation_steps=3
    )
    assert found == pytest.approx(2 * 2 + 1 + 2.5 + 1)
