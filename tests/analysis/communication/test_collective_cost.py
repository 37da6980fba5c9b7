"""What an all-reduce costs at any group size, and where that is from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbench.analysis.communication import cost_models
from dpbench.analysis.communication.collective_cost import measured_cost, network_cost
from dpbench.analysis.communication.cost_models import Link
from dpbench.analysis.communication.curves import CollectiveCurve, OverlapPoint
from dpbench.analysis.communication.topology import all_reduce_seconds, load_topology
from dpbench.errors import UsageError
from tests.analysis.communication.collective_records import SIZES, topology

LINK = Link(latency_seconds=50e-6, bytes_per_second=2e9)


def ring_curve(n: int, *, backend: str = "gloo", slower: float = 1.0) -> CollectiveCurve:
    return CollectiveCurve(
        collective="all_reduce",
        backend=backend,
        group_size=n,
        sizes_bytes=SIZES,
        seconds=tuple(slower * cost_models.ring(size, n, LINK) for size in SIZES),
    )


def test_one_rank_and_no_bytes_cost_nothing() -> None:
    cost = measured_cost([ring_curve(2)], "gloo")
    assert cost.seconds(1e6, 1) == 0
    assert cost.seconds(0, 2) == 0
    assert cost.kind(1) == "measured"


def test_measured_group_sizes_are_taken_as_measured() -> None:
    cost = measured_cost([ring_curve(2), ring_curve(4)], "gloo")
    assert cost.seconds(SIZES[5], 4) == pytest.approx(cost_models.ring(SIZES[5], 4, LINK))
    assert cost.kind(4) == "measured"


def test_between_measured_group_sizes_the_logarithm_is_interpolated() -> None:
    cost = measured_cost([ring_curve(2), ring_curve(8)], "gloo")
    low, high = (cost.seconds(1e6, n) for n in (2, 8))
    assert cost.seconds(1e6, 4) == pytest.approx((low * high) ** 0.5)
    assert cost.kind(4) == "interpolated"


@pytest.mark.parametrize("n", [3, 6, 16])
@pytest.mark.parametrize("nbytes", [100, 65_536, 4**10, 1e9])
def test_a_measured_ring_is_extrapolated_as_a_ring(n: int, nbytes: float) -> None:
    cost = measured_cost([ring_curve(4)] if n > 4 else [ring_curve(2)], "gloo")
    # Between measured sizes PCHIP is a few percent off a line.
    assert cost.seconds(nbytes, n) == pytest.approx(cost_models.ring(nbytes, n, LINK), rel=0.03)
    assert cost.kind(n) == "extrapolated"


def test_beyond_four_times_the_largest_group_it_is_refused() -> None:
    cost = measured_cost([ring_curve(4)], "gloo")
    assert [cost.kind(n) for n in (2, 4, 16, 17)] == [
        "refused",
        "measured",
        "extrapolated",
        "refused",
    ]
    with pytest.raises(UsageError, match="the largest group measured is 4, and 17 is more than 4"):
        cost.seconds(1e6, 17)
    with pytest.raises(UsageError, match="the smallest group measured is 4; measure 2 too"):
        cost.seconds(1e6, 2)


def test_what_was_not_measured_is_named_with_the_command() -> None:
    with pytest.raises(
        UsageError, match=r"on shm was measured .*all_reduce on gloo.*--backends shm"
    ):
        measured_cost([ring_curve(2)], "shm")
    broadcast = replace(ring_curve(2), collective="broadcast")
    with pytest.raises(UsageError, match="broadcast on gloo"):
        measured_cost([broadcast], "gloo")


def test_a_topology_alone_is_projected() -> None:
    cost = network_cost(topology())
    assert cost.seconds(1e8, 64) == all_reduce_seconds(topology(), 1e8, 64)
    assert [cost.kind(n) for n in (1, 2, 10_000)] == ["measured", "projected", "projected"]


def test_a_topology_scales_the_curve_that_was_measured_on_it() -> None:
    network = topology(algorithm="ring")
    measured = replace(
        ring_curve(8),
        seconds=tuple(2 * all_reduce_seconds(network, size, 8) for size in SIZES),
    )
    cost = network_cost(network, [measured])
    assert cost.seconds(SIZES[-1], 8) == pytest.approx(measured.seconds[-1])
    assert cost.kind(8) == "measured"
    # Of 64: 364 instead of 28 µs of latency, twice (ρ = 2); 7.875 instead of 0.875 ms per 100 MB.
    more = 2 * (364e-6 - 28e-6) + SIZES[-1] / 1e8 * 7e-3
    assert cost.seconds(SIZES[-1], 64) == pytest.approx(measured.seconds[-1] + more, rel=1e-3)
    assert cost.kind(64) == "projected"


def test_below_the_measured_group_the_topology_speaks() -> None:
    cost = network_cost(topology(), [ring_curve(8)])
    assert cost.seconds(1e6, 2) == all_reduce_seconds(topology(), 1e6, 2)
    assert cost.kind(2) == "projected"


@pytest.mark.parametrize(
    "curve",
    [ring_curve(2, backend="shm"), replace(ring_curve(2), nodes=1)],
    ids=["another backend", "one host"],
)
def test_curves_of_another_network_are_not_used(curve: CollectiveCurve) -> None:
    network = load_topology("tcp-10gbe")  # a rank a host, gloo
    cost = network_cost(network, [curve])
    assert cost.kind(2) == "projected"
    assert cost.seconds(1e6, 2) == all_reduce_seconds(network, 1e6, 2)
    assert any("another network: not used" in text for text in cost.assumptions)


def test_a_curve_across_hosts_is_of_the_network_between_them() -> None:
    cost = network_cost(load_topology("tcp-10gbe"), [replace(ring_curve(2), nodes=2)])
    assert cost.kind(2) == "measured"


def times_the_figures(factor: float) -> CollectiveCurve:
    return replace(
        ring_curve(8),
        seconds=tuple(factor * all_reduce_seconds(topology(), size, 8) for size in SIZES),
    )


def test_a_curve_that_disagrees_with_its_topology_is_remarked() -> None:
    slow = network_cost(topology(), [times_the_figures(3)])
    assert slow.kind(8) == "measured"
    assert any("where its figures say" in text for text in slow.assumptions)


def test_a_curve_that_contradicts_its_topology_is_not_scaled() -> None:
    """Else a link with less latency would cost more: ρ, measured ÷ modelled, grows with it."""
    for factor in (0.1, 10):
        cost = network_cost(topology(), [times_the_figures(factor)])
        assert cost.seconds(1e6, 64) == all_reduce_seconds(topology(), 1e6, 64)
        assert any("more than 5 times faster or slower" in text for text in cost.assumptions)


def test_a_single_node_ends_where_it_is_full() -> None:
    cost = network_cost(load_topology("pcie4"))
    assert [cost.kind(n) for n in (8, 9)] == ["projected", "refused"]
    with pytest.raises(UsageError, match="pcie4 is one node of 8 ranks"):
        cost.seconds(1e6, 9)


def test_twice_the_bandwidth_and_half_the_latency() -> None:
    cost = network_cost(topology(algorithm="ring"))
    plain = cost.seconds(1e8, 64)
    assert cost.scaled(bandwidth=2).seconds(1e8, 64) == pytest.approx(plain - 7.875e-3 / 2)
    assert cost.scaled(latency=0.5).seconds(1e8, 64) == pytest.approx(plain - 0.364e-3 / 2)
    both = cost.scaled(latency=0.5).scaled(bandwidth=2)
    assert both.seconds(1e8, 64) == pytest.approx(plain - (7.875e-3 + 0.364e-3) / 2)
    with pytest.raises(ValueError, match="positive factors"):
        cost.scaled(bandwidth=0)


@given(
    nbytes=st.floats(1, 1e10),
    n=st.integers(1, 8),
    latency=st.floats(0, 1),
    bandwidth=st.floats(1, 100),
)
def test_better_networks_never_cost_more(
    nbytes: float, n: int, latency: float, bandwidth: float
) -> None:
    cost = measured_cost([ring_curve(2)], "gloo")
    better = cost.scaled(latency=latency, bandwidth=bandwidth).seconds(nbytes, n)
    assert 0 <= better <= cost.seconds(nbytes, n) * (1 + 1e-12)


def test_overlap_is_that_of_the_largest_group_that_has_it() -> None:
    overlaps = (OverlapPoint(nbytes=2**20, lost_share=0.5, stretch=1.2),)
    cost = measured_cost([replace(ring_curve(2), overlaps=overlaps), ring_curve(4)], "gloo")
    assert (cost.lost_share(1e6), cost.stretch(1e6)) == (0.5, 1.2)
    assert any(
        "measured at 2 ranks, at every group size, and of matrix products that stay" in text
        for text in cost.assumptions
    )
    plain = measured_cost([ring_curve(4)], "gloo")
    assert (plain.lost_share(1e6), plain.stretch(1e6)) == (0.0, 1.0)
    assert any("that was not measured" in text for text in plain.assumptions)


def test_what_a_step_sees_counts_where_it_was_measured() -> None:
    cold = ring_curve(2, slower=1.5)
    cost = measured_cost([replace(ring_curve(2), in_step=cold)], "gloo")
    assert cost.seconds(1e6, 2) == pytest.approx(cold.seconds_at(1e6))
    assert any(
        "at 2 ranks 1.5 times (of 1 MiB), 1.5 times (of 25 MiB) what they take one" in text
        for text in cost.assumptions
    )
    warm = measured_cost([replace(ring_curve(2), in_step=cold)], "gloo", in_step=False)
    assert warm.seconds(1e6, 2) == pytest.approx(ring_curve(2).seconds_at(1e6))
    assert not any("in a step" in text for text in warm.assumptions)


def test_what_a_step_multiplies_is_multiplied_on_every_further_hop() -> None:
    """2 ranks pass on 1 s/B, 8 pass on 1.75: cold, both take 3 times as long."""
    cold = ring_curve(2, slower=3)
    cost = measured_cost([replace(ring_curve(2), in_step=cold)], "gloo")
    nbytes = SIZES[-1]
    more = cost.seconds(nbytes, 8) - cost.seconds(nbytes, 2)
    assert more == pytest.approx(3 * 0.75 * nbytes / 2e9 + 12 * 50e-6, rel=1e-3)


def broadcast_curve(n: int, seconds: float, **changes: Any) -> CollectiveCurve:
    return replace(
        ring_curve(n), collective="broadcast", seconds=(seconds,) * len(SIZES), **changes
    )


def test_a_broadcast_takes_what_was_measured_and_grows_as_an_all_reduce() -> None:
    cost = measured_cost([ring_curve(2), ring_curve(4), broadcast_curve(2, 3e-3)], "gloo")
    assert cost.broadcast_seconds(1e6, 2) == pytest.approx(3e-3)
    growth = cost.seconds(1e6, 4) / cost.seconds(1e6, 2)
    assert cost.broadcast_seconds(1e6, 4) == pytest.approx(3e-3 * growth)
    assert cost.broadcast_seconds(1e6, 1) == cost.broadcast_seconds(0, 2) == 0
    faster = cost.scaled(latency=0.5, bandwidth=2)
    assert faster.broadcast_seconds(1e6, 2) == pytest.approx(1.5e-3)
    assert "broadcast as measured at 2 ranks" in cost.broadcast_assumption


def test_without_a_broadcast_of_the_same_network_buffers_cost_an_all_reduce() -> None:
    others = [
        broadcast_curve(2, 3e-3, backend="shm"),
        broadcast_curve(2, 3e-3, nodes=2),
        broadcast_curve(4, 3e-3),
    ]
    cost = measured_cost([ring_curve(2), *others], "gloo")
    assert cost.broadcast_seconds(1e6, 2) == cost.seconds(1e6, 2)
    assert "time of an all-reduce" in cost.broadcast_assumption
    given_ = network_cost(load_topology("tcp-10gbe"), [ring_curve(2), broadcast_curve(2, 3e-3)])
    assert given_.broadcast_seconds(1e6, 2) == given_.seconds(1e6, 2)


def test_assumptions_are_sentences_with_their_numbers() -> None:
    measured = measured_cost([ring_curve(2)], "gloo").assumptions
    assert any("50 µs a message, 2 GB/s" in text for text in measured)
    given_ = network_cost(topology()).assumptions
    assert given_[0] == (
        "plain: nodes of 8 ranks, 200 GB/s between ranks of a node, 25 GB/s for a whole node "
        "(made up; 2026-01-01); how far they may be off is not stated, so bands leave it out"
    )


def test_a_hook_that_halves_the_bytes_halves_what_travels_but_not_the_buffers() -> None:
    plain = measured_cost([ring_curve(2), broadcast_curve(2, 1e-3)], "gloo")
    half = plain.compressed(0.5)
    assert plain.compressed(1.0) is plain
    assert half.seconds(2e6, 2) == pytest.approx(plain.seconds(1e6, 2))
    assert half.broadcast_seconds(2e6, 2) == plain.broadcast_seconds(2e6, 2)
    assert half.fill_seconds(2e6) == plain.fill_seconds(2e6)
    assert "sends 0.5 of the bytes" in half.assumptions[-1]
