"""Simulations of a sweep: what goes into them, and their bands."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import date

import pytest

from dpbench.analysis.communication.network import Link, Topology, flat_network
from dpbench.analysis.projection.law import WITHIN_NODE, error_scale
from dpbench.analysis.projection.simulation import Simulation, simulation_of
from dpbench.errors import UsageError
from tests.analysis.builders import trial
from tests.analysis.projection.sweeps import GRADIENT_BYTES, GRADIENTS, ddp_series, swept


def network(gigabytes_per_second: float = 1e6, **changes: float) -> Topology:
    """One node, in which messages take no time but for their bytes."""
    return Topology(
        name="a box",
        ranks_per_node=64,
        intra=Link(latency_us=0, gigabytes_per_second=gigabytes_per_second),
        algorithm="ring",
        source="a test",
        date=date(2026, 1, 31),
        **changes,
    )


FREE = network()


def simulation(on: Topology = FREE, **changes: float) -> Simulation:
    records = swept(**changes)
    [series] = ddp_series(records)
    return simulation_of(series, on)


def test_one_replica_takes_its_measured_mean_step() -> None:
    """The trace of 10 ms is scaled to the 11 ms of the timed window."""
    assert simulation().step_seconds(1) == pytest.approx(0.011)


def test_contention_is_that_of_the_slowest_replica_without_synchronization() -> None:
    """13 and 14 ms beside the other replica instead of 11 ms alone."""
    assert simulation().contention_at(2).value == pytest.approx(14 / 11)
    assert simulation().step_seconds(2) == pytest.approx(0.014)
    # On nodes of one rank a replica computes as if it were alone.
    assert simulation(flat_network(1e6, 0)).contention_at(2).value == 1


def test_communication_adds_what_the_backward_pass_does_not_hide() -> None:
    """One bucket of 1 MiB, one of 7: the second is sent when the backward pass ends."""
    slow = network(2)
    exposed = simulation(slow).step_seconds(2) - simulation().step_seconds(2)
    assert exposed == pytest.approx((GRADIENTS - 1) * GRADIENT_BYTES / 2e9, rel=1e-5)
    one, row = simulation(slow).row(1), simulation(slow).row(2)
    assert (one.kind, row.kind) == ("measured", "projected")


def test_the_band_moves_the_network_to_its_ends() -> None:
    """With nothing else uncertain: the error of laws, and a factor of 2 on collectives."""
    found = simulation(network(launch_us=5_000, uncertainty=2))
    row = found.row(8)
    assert row.step_seconds is not None
    step = found.step_seconds(8)
    slower = math.log(found.step_seconds(8, network=2.0) / step)
    law = WITHIN_NODE.high * error_scale(math.log(step / found.step_seconds(1)) / 3, 2)
    assert row.step_seconds.high == pytest.approx(step * math.exp(math.hypot(slower, law)))
    assert row.step_seconds.confidence == 0.9


def test_what_cannot_be_simulated_says_why() -> None:
    records = swept()
    [series] = ddp_series(records)
    [untraced] = ddp_series([r for r in records if r.trial.group_size > 1])
    with pytest.raises(
        UsageError, match=r"needs the gradient trace of group size 1.*--group-sizes 1,2"
    ):
        simulation_of(untraced, FREE)
    rows = tuple(replace(row, trial=trial("dp", "threads")) for row in series.rows)
    with pytest.raises(UsageError, match="only ddp, torch-ddp"):
        simulation_of(replace(series, rows=rows), FREE)
