"""Simulations of a sweep: what goes into them, their bands, and the two questions to them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from dpbench.analysis.communication.network import Network, flat_network, measured_network
from dpbench.analysis.projection.changes import changed_rows, parse_change, smallest_batches
from dpbench.analysis.projection.law import published_error
from dpbench.analysis.projection.simulation import Simulation, project, simulation_of
from dpbench.errors import UsageError
from tests.analysis.builders import trial
from tests.analysis.communication.collective_records import (
    affine,
    collective_record,
    collective_spec,
)
from tests.analysis.projection.sweeps import GRADIENT_BYTES, GRADIENTS, ddp_series, swept

COLLECTIVES = [
    collective_record(collective_spec(repetition=repetition), affine(1e-4, 2e9))
    for repetition in range(3)
]
FREE = Network(name="free", all_reduce=lambda nbytes, n: 0.0, assumption="")
SLOWEST_OF_TWO = 1 + (2**0.5 / 27) / 2
"""Two replicas of 13 and 14 ms: the larger ratio in three of four draws."""


def simulation(network: Network = FREE, **changes: float) -> Simulation:
    records = swept(**changes)
    [series] = ddp_series(records)
    return simulation_of(records, series, network)


def measured() -> Simulation:
    records, network = swept(), measured_network(COLLECTIVES, "gloo")
    [series] = ddp_series(records)
    return simulation_of(records, series, network, network)


def test_one_replica_takes_its_measured_mean_step() -> None:
    """The trace of 10 ms is scaled to the 11 ms of the timed window."""
    assert simulation().step_seconds(1) == pytest.approx(0.011)


def test_contention_and_stragglers_come_from_steps_without_synchronization() -> None:
    """13.5 ms beside the other replica instead of 11 ms alone; the slower of both counts."""
    assert simulation().contention_at(2).value == pytest.approx(13.5 / 11)
    assert simulation().slowest(2).value == pytest.approx(SLOWEST_OF_TWO)
    assert simulation().step_seconds(2) == pytest.approx(0.0135 * SLOWEST_OF_TWO)
    # On nodes of one rank a replica computes as if it were alone.
    assert simulation(flat_network(1e6, 0)).contention_at(2).value == 1


def test_communication_adds_what_the_backward_pass_does_not_hide() -> None:
    """One bucket of 1 MiB, one of 7: the second is sent when the backward pass ends."""
    network = replace(FREE, all_reduce=lambda nbytes, n: nbytes / 2e9)
    exposed = simulation(network).step_seconds(2) - simulation().step_seconds(2)
    assert exposed == pytest.approx((GRADIENTS - 1) * GRADIENT_BYTES / 2e9)
    [row] = project(simulation(network), [2])
    assert row.exposed_seconds is not None
    assert row.exposed_seconds.value == pytest.approx(exposed)


def test_steps_on_the_measured_network_meet_the_measured_one() -> None:
    found = measured()
    assert found.step_seconds(2) == pytest.approx(0.020)
    plain = simulation(measured_network(COLLECTIVES, "gloo"))
    error = math.log(plain.step_seconds(2) / 0.020)
    assert found.checked == {2: pytest.approx(error)}
    assert (found.model_error(2), found.model_error(8)) == (0, pytest.approx(abs(error)))
    one, two, eight = project(found, [1, 2, 8])
    assert [row.kind for row in (one, two, eight)] == ["measured", "measured", "extrapolated"]
    assert two.simulation_error == pytest.approx(math.expm1(error))


def test_the_band_moves_the_network_to_its_ends() -> None:
    """With nothing else uncertain: the error of laws, and a factor of 2 on collectives."""
    network = replace(FREE, all_reduce=lambda nbytes, n: 0.010, ends=(0.5, 2.0))
    found = simulation(network)
    [row] = project(found, [8])
    assert row.step_seconds is not None
    step = found.step_seconds(8)
    slower = math.log(found.step_seconds(8, {"network": 2.0}) / step)
    law = published_error(2).at(2)[1]
    assert row.step_seconds.high == pytest.approx(step * math.exp(math.hypot(slower, law)))
    assert row.step_seconds.confidence == 0.9


def test_what_cannot_be_simulated_says_why() -> None:
    records = swept()
    [series] = ddp_series(records)
    untraced = [r for r in records if r.trial.group_size > 1]
    with pytest.raises(
        UsageError, match=r"needs the gradient trace of group size 1.*--group-sizes 1,2"
    ):
        simulation_of(untraced, series, FREE)
    with pytest.raises(UsageError, match="only ddp, torch-ddp"):
        simulation_of(records, replace(series, trial=trial("dp", "threads")), FREE)
    shm = replace(series, trial=trial("ddp", "shm"))
    with pytest.raises(UsageError, match="the gradient trace"):
        simulation_of(records, shm, FREE)
    [row] = project(measured(), [9])
    assert "more than 4 × the largest group with measured collectives" in (row.reason or "")


@pytest.mark.parametrize(
    ("change", "step", "ratio"),
    [
        ("bandwidth=2", 0.030, 0.040 / 0.030),
        ("latency=0.5", 0.040, 1.0),
        ("compute=2", 0.030, 0.040 / 0.030),
        ("gradient-bytes=0.5", 0.030, 0.040 / 0.030),
        ("bucket-cap-mb=100", 0.040, 1.0),
        ("accumulate=3", 0.040 + 2 * 0.015, 3 * 0.040 / 0.070),
    ],
)
def test_a_change_is_simulated_beside_the_step_as_it_is(
    change: str, step: float, ratio: float
) -> None:
    """20 ms of computing, of which 15 are forward and backward, and 20 ms of communication after
    them, as one bucket is ready only at the end of the backward pass."""
    network = replace(
        FREE, all_reduce=lambda nbytes, n: 0.020 * nbytes / (GRADIENTS * GRADIENT_BYTES)
    )
    found = replace(simulation(network), contention={}, ratios=(), cap_mb=100.0)
    found = replace(found, trace=found.trace.scaled(20 / 11))
    now, changed = changed_rows(found, [2], {change: parse_change(change)})
    assert (now.change, changed.change) == (None, change)
    assert now.step_seconds is not None
    assert changed.step_seconds is not None
    assert changed.ratio is not None
    assert now.step_seconds.value == pytest.approx(0.040)
    assert changed.step_seconds.value == pytest.approx(step)
    assert changed.ratio.value == pytest.approx(ratio)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nope=1", "unknown name in --change: 'nope'"),
        ("bandwidth", "--change bandwidth: expected a number above 0"),
        ("bandwidth=0", "expected a number above 0"),
        ("latency=nan", "expected a number above 0"),
        ("accumulate=1.5", "expected a whole number of micro-steps"),
    ],
)
def test_a_wrong_change_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_change(text)
    assert words in str(error.value)


def batches(network: Network) -> list[Simulation]:
    """Batch 32 takes 11 ms; batch 128 four times as long."""
    records = swept((32, 128))
    small, large = (simulation_of(records, one, network) for one in ddp_series(records))
    plain = [replace(one, contention={}, ratios=()) for one in (small, large)]
    return [plain[0], replace(plain[1], trace=plain[1].trace.scaled(4))]


def test_the_smallest_batch_keeps_the_efficiency_and_one_less_does_not() -> None:
    """A step of b ÷ 32 × 11 ms with 5 ms of communication: 80 % takes 20 ms of computing."""
    network = replace(FREE, all_reduce=lambda nbytes, n: 0.005)
    members = [replace(one, cap_mb=100.0) for one in batches(network)]
    [row] = smallest_batches(members, [8], 0.8)
    assert row.batch_size is not None
    assert row.batch_size.value == math.ceil(32 * 20 / 11)
    assert row.kind == "projected"


def test_a_batch_beyond_the_measured_ones_is_refused() -> None:
    network = replace(FREE, all_reduce=lambda nbytes, n: 1.0)
    [row] = smallest_batches(batches(network), [8], 0.8)
    assert row.reason is not None
    assert row.reason.startswith("the largest measured batch size (128) reaches only ")
    with pytest.raises(UsageError, match="needs two batch sizes or more"):
        smallest_batches(batches(network)[:1], [8], 0.8)
