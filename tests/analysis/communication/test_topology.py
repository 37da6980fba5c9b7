"""What an all-reduce takes on a network that is given."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpbench.analysis.communication import cost_models
from dpbench.analysis.communication.cost_models import Link
from dpbench.analysis.communication.topology import (
    ALGORITHMS,
    Algorithm,
    Topology,
    all_reduce_seconds,
)
from dpbench.errors import UsageError
from tests.analysis.communication.topologies import topology

NBYTES = 100e6


def test_hierarchical_is_the_faster_of_ring_and_tree_between_nodes() -> None:
    # 8.043 ms with a ring between the 8 nodes, 80 µs less with a tree.
    took = all_reduce_seconds(topology(algorithm="hierarchical"), NBYTES, 64)
    assert took == pytest.approx(7.963e-3)


def test_a_ring_over_nodes_pays_the_network_where_it_crosses_it() -> None:
    # 126 messages in a row, 14 of them between nodes: 112 × 2 µs + 14 × 10 µs, at 25 GB/s.
    took = all_reduce_seconds(topology(algorithm="ring"), NBYTES, 64)
    assert took == pytest.approx(0.364e-3 + 7.875e-3)


def test_a_tree_climbs_the_nodes() -> None:
    # Twice 7 × 2 µs inside and 3 × 10 µs between, and 2 × 100 MB at 25 GB/s.
    took = all_reduce_seconds(topology(algorithm="tree"), NBYTES, 64)
    assert took == pytest.approx(88e-6 + 8e-3)


def test_inside_a_node_only_its_links_count() -> None:
    took = all_reduce_seconds(topology(algorithm="ring"), NBYTES, 8)
    assert took == pytest.approx(28e-6 + 0.875e-3)


def test_every_collective_takes_its_launch() -> None:
    plain = all_reduce_seconds(topology(), NBYTES, 8)
    assert all_reduce_seconds(topology(launch_seconds=1e-3), NBYTES, 8) == plain + 1e-3


def test_one_rank_costs_nothing() -> None:
    assert all_reduce_seconds(topology(launch_seconds=1e-3), NBYTES, 1) == 0


def test_a_node_that_is_not_full_is_a_node() -> None:
    assert [topology().nodes(n) for n in (1, 8, 9, 16, 17)] == [1, 1, 2, 2, 3]


def test_a_group_beyond_the_only_node_is_refused() -> None:
    with pytest.raises(UsageError, match=r"plain is one node of 8, group size 9 takes more"):
        all_reduce_seconds(topology(inter=None), NBYTES, 9)


@pytest.mark.parametrize("algorithm", [a for a in ALGORITHMS if a != "in-network"])
@settings(max_examples=30)
@given(n=st.integers(2, 20_000), nbytes=st.floats(0, 1e12))
def test_no_algorithm_between_ranks_beats_its_slowest_link(
    algorithm: Algorithm, n: int, nbytes: float
) -> None:
    nodes = topology().nodes(n)
    # A node's 8 ranks reduce among themselves first: the network carries 2 (m-1)/m of the bytes.
    bound = cost_models.lower_bound(nbytes, nodes if nodes > 1 else n, 25e9 if nodes > 1 else 200e9)
    assert all_reduce_seconds(topology(algorithm=algorithm), nbytes, n) >= bound * (1 - 1e-12)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@settings(max_examples=30)
@given(nbytes=st.floats(0, 1e12), n=st.integers(2, 20_000), factor=st.floats(1, 100))
def test_a_faster_network_never_takes_longer(
    algorithm: Algorithm, nbytes: float, n: int, factor: float
) -> None:
    faster = Link(latency_seconds=10e-6 / factor, bytes_per_second=25e9 * factor)
    took = all_reduce_seconds(topology(algorithm=algorithm), nbytes, n)
    assert all_reduce_seconds(topology(algorithm=algorithm, inter=faster), nbytes, n) <= took


def test_auto_takes_the_fastest() -> None:
    def took(algorithm: Algorithm, nbytes: float, n: int) -> float:
        return all_reduce_seconds(topology(algorithm=algorithm), nbytes, n)

    for nbytes, n in ((1e3, 64), (1e8, 64), (1e8, 4096)):
        named: tuple[Algorithm, ...] = ("ring", "tree", "hierarchical")
        assert took("auto", nbytes, n) == min(took(one, nbytes, n) for one in named)


@pytest.mark.parametrize(
    ("algorithm", "seconds"),
    [
        # 8 shards of 12.5 MB share the node's 25 GB/s: 4 ms and a hop.
        ("in-network", 28e-6 + 0.875e-3 + 10e-6 + 4e-3),
        # 3 halvings and 3 doublings between 8 nodes, twice 7/8 of those 4 ms.
        ("halving-doubling", 28e-6 + 0.875e-3 + 60e-6 + 7e-3),
    ],
)
def test_ranks_of_a_node_share_its_link_after_a_ring_among_them(
    algorithm: Algorithm, seconds: float
) -> None:
    took = all_reduce_seconds(topology(algorithm=algorithm), NBYTES, 64)
    assert took == pytest.approx(seconds)


def test_one_node_needs_no_network_to_add_up() -> None:
    # A switch between the 8: 2 µs and 100 MB at 200 GB/s.
    took = all_reduce_seconds(topology(algorithm="in-network"), NBYTES, 8)
    assert took == pytest.approx(2e-6 + 0.5e-3)


def test_a_switch_that_adds_up_sends_each_byte_once() -> None:
    network = Topology(
        name="switch",
        ranks_per_node=1,
        intra=Link(latency_seconds=5e-6, bytes_per_second=10e9),
        inter=Link(latency_seconds=5e-6, bytes_per_second=10e9),
        algorithm="in-network",
        source="made up",
        date="2026-01-01",
    )
    assert all_reduce_seconds(network, NBYTES, 64) == pytest.approx(10.005e-3)
