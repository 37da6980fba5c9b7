from __future__ import annotations

import math
from dataclasses import replace

import pytest

from dpbench.analysis.simulation.trace import single_steps, step_trace, tracing_overhead
from tests.analysis.simulation.traces import gradient_trace, step


def test_a_trace_is_the_median_of_all_its_steps_in_the_order_of_readiness() -> None:
    found = step_trace([gradient_trace((0.008, 0.010)), gradient_trace((0.010, 0.1, 0.1))])
    assert found.step_seconds == pytest.approx(0.010)
    assert (found.forward_seconds, found.backward_seconds) == pytest.approx((0.0025, 0.005))
    assert found.optimizer_seconds == pytest.approx(0.0025)
    assert found.ready_seconds == pytest.approx([0.0025 + 0.000625 * i for i in range(1, 9)])
    assert found.sample_size == 5


def test_sizes_and_dtypes_follow_their_gradients() -> None:
    names = tuple("float32" if i else "bfloat16" for i in range(8))
    trace = gradient_trace(gradient_bytes=(1, 2, 3, 4, 5, 6, 7, 8), gradient_dtypes=names)
    found = step_trace([trace])
    assert found.gradient_bytes == (8, 7, 6, 5, 4, 3, 2, 1)
    assert found.gradient_dtypes[-1] == "bfloat16"


def test_traces_of_different_gradients_are_refused() -> None:
    with pytest.raises(ValueError, match="the same gradients"):
        step_trace([gradient_trace(), gradient_trace(gradient_bytes=(1,) * 8)])
    with pytest.raises(ValueError, match="a trace at least"):
        step_trace([])


def test_every_step_can_stand_alone() -> None:
    found = single_steps(gradient_trace((0.008, 0.010)))
    assert [one.step_seconds for one in found] == pytest.approx([0.008, 0.010])
    assert found[0].ready_seconds[0] == pytest.approx(0.008 * (0.25 + 1 / 16))


def test_gradients_are_ready_in_order_and_before_the_backward_pass_ends() -> None:
    with pytest.raises(ValueError, match="order"):
        step([2.0, 1.0])
    with pytest.raises(ValueError, match="after the end"):
        step([1.0, 2.0], end=1.5)
    with pytest.raises(ValueError, match="dtype"):
        step([1.0, 2.0], gradient_dtypes=("float32",))


def test_the_overhead_of_one_repetition_is_over_its_pairs_of_steps() -> None:
    trace = gradient_trace((0.011, 0.0099), untraced_step_seconds=(0.010, 0.010))
    found = tracing_overhead([trace])
    assert found.value == pytest.approx(math.sqrt(1.1 * 0.99))
    assert (found.basis, found.sample_size) == ("step batches", 2)


def test_the_overhead_of_several_is_over_repetitions() -> None:
    traces = [gradient_trace(untraced_step_seconds=(u, u)) for u in (0.010, 0.0098, 0.0102)]
    found = tracing_overhead(traces)
    assert (found.basis, found.sample_size) == ("repetitions", 3)
    assert found.contains(1.0)


def test_an_overhead_needs_an_untraced_step_for_every_traced_one() -> None:
    with pytest.raises(ValueError, match="shorter"):
        tracing_overhead([replace(gradient_trace(), untraced_step_seconds=(0.01,))])
