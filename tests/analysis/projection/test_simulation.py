"""Simulated steps against sums by hand, what goes into them, and their bands."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from dpbench.analysis.projection.curve import ProjectedPoint
from dpbench.analysis.projection.law import WITHIN_NODE, error_scale
from dpbench.analysis.projection.network import Link, Topology, flat_network
from dpbench.analysis.projection.simulation import (
    buckets,
    project_by_simulation,
    simulated_seconds,
    typical_step,
)
from dpbench.errors import UsageError
from dpbench.records.trial import GradientTrace
from dpbench.units import MEBI
from tests.analysis.builders import trial
from tests.analysis.projection.sweeps import (
    GRADIENT_BYTES,
    GRADIENTS,
    ddp_curves,
    gradient_trace,
    swept,
    topology,
)


def network(gigabytes_per_second: float = 1e6, **changes: float) -> Topology:
    """One node, in which messages take no time but for their bytes."""
    intra = Link(latency_us=0, gigabytes_per_second=gigabytes_per_second)
    return topology(ranks_per_node=64, intra=intra, algorithm="ring", **changes)


FREE = network()


def row(n: int, on: Topology = FREE) -> ProjectedPoint:
    """A group size of the sweep on this network."""
    [curve] = ddp_curves(swept())
    (found,) = project_by_simulation(curve, on, [n]).points
    return found


def step(n: int, on: Topology = FREE) -> float:
    """Its step in seconds."""
    found = row(n, on).step_seconds
    assert found is not None
    return found.value


def test_computing_is_as_traced_times_contention() -> None:
    """The trace of 10 ms is scaled to the 11 ms of the timed window; the slowest of two replicas
    takes 14 ms without synchronization."""
    assert step(1) == pytest.approx(0.011)
    assert step(2) == pytest.approx(0.014)
    # On nodes of one rank a replica computes as if it were alone.
    assert step(2, flat_network(1e6, 0)) == pytest.approx(0.011)


def test_communication_adds_what_the_backward_pass_does_not_hide() -> None:
    """One bucket of 1 MiB, one of 7: the second is sent when the backward pass ends."""
    slow = network(2)
    exposed = (GRADIENTS - 1) * GRADIENT_BYTES / 2e9
    assert step(2, slow) - step(2) == pytest.approx(exposed, rel=1e-5)
    assert (row(1, slow).origin, row(2, slow).origin) == ("measured", "projected")


def test_the_band_moves_the_network_to_its_ends() -> None:
    """With nothing else uncertain: the error of laws, and a factor of 2 on collectives."""
    found = row(8, network(launch_us=5_000, uncertainty=2)).step_seconds
    assert found is not None
    slower = math.log(step(8, network(5e5, launch_us=10_000)) / found.value)
    law = WITHIN_NODE.high * error_scale(math.log(found.value / step(1)) / 3, 2)
    assert found.high == pytest.approx(found.value * math.exp(math.hypot(slower, law)))
    assert found.confidence == 0.9


def test_what_cannot_be_simulated_says_why() -> None:
    records = swept()
    [curve] = ddp_curves(records)
    [untraced] = ddp_curves([r for r in records if r.configuration.group_size > 1])
    with pytest.raises(
        UsageError, match=r"needs the gradient trace of group size 1.*--group-sizes 1,2"
    ):
        project_by_simulation(untraced, FREE, [2])
    for changes, words in (
        ({"implementation": "dp", "backend": "threads"}, "only ddp, torch-ddp"),
        ({"comm_hook": "bf16"}, "a communication hook cannot be simulated"),
    ):
        rows = tuple(replace(row, configuration=trial(**changes)) for row in curve.rows)
        with pytest.raises(UsageError, match=words):
            project_by_simulation(replace(curve, rows=rows), FREE, [2])


MIB = float(MEBI)


def trace_of(*sizes: float, buffers: int = 0) -> GradientTrace:
    """Gradients of so many MiB at 1, 2, … seconds; backward ends with the last, then 0.5 s."""
    count = len(sizes)
    return replace(
        gradient_trace(),
        ready_seconds=(tuple(range(1, count + 1)),),
        gradient_bytes=tuple(int(size * MIB) for size in sizes),
        backward_end_seconds=(float(count),),
        step_seconds=(count + 0.5,),
        buffer_bytes=buffers,
    )


def test_a_trace_holds_medians_in_the_order_in_which_gradients_are_ready() -> None:
    found = typical_step([gradient_trace(0.01), gradient_trace(0.02), gradient_trace(0.03)])
    assert found.step_seconds == pytest.approx((0.02,))
    assert found.backward_end_seconds == pytest.approx((0.015,))
    (ready,) = found.ready_seconds
    assert (list(ready), found.parameters[0]) == (sorted(ready), "layer7")
    assert ready[0] == pytest.approx(0.02 * (0.25 + 1 / 16))
    with pytest.raises(UsageError, match="different gradients"):
        typical_step([gradient_trace(), gradient_trace(gradient_bytes=(1,) * 8)])


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
    assert buckets(trace_of(*sizes), cap) == [(ready, nbytes * MIB) for ready, nbytes in expected]


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
    step = trace_of(1, 1, 1, 1)
    sent = buckets(step, 1)
    found = simulated_seconds(step, sent, lambda n: cost * (n > 0), computing_seconds=4.5)
    assert found == pytest.approx(expected)


def test_only_the_last_micro_step_communicates_and_buffers_are_sent_before_it() -> None:
    step, computing = trace_of(1, 1, buffers=MEBI), 2 * 2 + 2.5
    found = simulated_seconds(
        step, buckets(step, 1), lambda n: n / MIB, computing_seconds=computing, accumulate=3
    )
    assert found == pytest.approx(computing + 2)
