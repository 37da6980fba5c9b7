"""All-reduce models against numbers worked by hand, and against what no all-reduce can do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpbench.analysis.communication import cost_models
from dpbench.analysis.communication.bandwidth import bus_factor
from dpbench.analysis.communication.cost_models import (
    Link,
)

NBYTES = 100e6
LINK = Link(latency_seconds=5e-6, bytes_per_second=10e9)

Model = Callable[[float, int, Link], float]
BETWEEN_RANKS: dict[str, Model] = {
    "ring": cost_models.ring,
    "halving-doubling": cost_models.halving_doubling,
    "double tree": cost_models.double_tree,
    "tree of shards": cost_models.tree_of_shards,
}


def test_a_ring_of_eight_takes_17_57_ms_for_100_mb() -> None:
    took = cost_models.ring(NBYTES, 8, LINK)
    assert took == pytest.approx(17.57e-3)
    busbw = NBYTES / took * bus_factor("all_reduce", 8)
    assert busbw == pytest.approx(9.960e9, rel=1e-4)


def test_sixty_four_ranks_by_algorithm() -> None:
    assert cost_models.ring(NBYTES, 64, LINK) == pytest.approx(20.3175e-3)
    assert cost_models.double_tree(NBYTES, 64, LINK) == pytest.approx(20.06e-3)
    assert cost_models.in_network(NBYTES, 64, LINK) == pytest.approx(10.005e-3)
    # 12 messages of 5 µs, and twice 63/64 of 10 ms.
    assert cost_models.halving_doubling(NBYTES, 64, LINK) == pytest.approx(19.7475e-3)


def test_eight_nodes_of_eight_against_a_flat_ring() -> None:
    inside = Link(latency_seconds=2e-6, bytes_per_second=200e9)
    node = Link(latency_seconds=10e-6, bytes_per_second=25e9)
    took = cost_models.hierarchical(NBYTES, 8, 8, inside, node)
    assert took == pytest.approx(8.043e-3)
    # 3 levels of a tree instead of 7 hops of a ring, both ways: 8 × 10 µs less.
    tree = cost_models.tree_of_shards
    by_tree = cost_models.hierarchical(NBYTES, 8, 8, inside, node, between=tree)
    assert took - by_tree == pytest.approx(80e-6)
    assert cost_models.ring(NBYTES, 64, node) == pytest.approx(9.135e-3)


def test_a_group_that_is_no_power_of_two_halves_with_two_steps_more() -> None:
    # 4 of 6 ranks halve and double (4 hops, 1.5 times 10 ms); 2 messages of the whole for the rest.
    expected = 4 * 5e-6 + 15e-3 + 2 * (5e-6 + 10e-3)
    assert cost_models.halving_doubling(NBYTES, 6, LINK) == pytest.approx(expected)


@pytest.mark.parametrize("model", [*BETWEEN_RANKS.values(), cost_models.in_network])
def test_one_rank_has_nobody_to_talk_to(model: Model) -> None:
    assert model(NBYTES, 1, LINK) == 0


@pytest.mark.parametrize("name", BETWEEN_RANKS)
@settings(max_examples=30)
@given(nbytes=st.floats(0, 1e12), n=st.integers(2, 20_000))
def test_nothing_between_ranks_beats_the_lower_bound(name: str, nbytes: float, n: int) -> None:
    bound = cost_models.lower_bound(nbytes, n, LINK.bytes_per_second)
    assert BETWEEN_RANKS[name](nbytes, n, LINK) >= bound * (1 - 1e-12)


@pytest.mark.parametrize("name", BETWEEN_RANKS)
@settings(max_examples=30)
@given(nbytes=st.floats(0, 1e12), more=st.floats(0, 1e9), n=st.integers(1, 20_000))
def test_more_bytes_and_slower_links_never_take_less(
    name: str, nbytes: float, more: float, n: int
) -> None:
    model = BETWEEN_RANKS[name]
    took = model(nbytes, n, LINK)
    assert model(nbytes + more, n, LINK) >= took
    assert model(nbytes, n, Link(latency_seconds=6e-6, bytes_per_second=9e9)) >= took


@settings(max_examples=30)
@given(nbytes=st.floats(0, 1e12), n=st.integers(1, 20_000), larger=st.integers(0, 20_000))
def test_a_larger_ring_never_takes_less(nbytes: float, n: int, larger: int) -> None:
    took = cost_models.ring(nbytes, n, LINK)
    assert cost_models.ring(nbytes, n + larger, LINK) >= took * (1 - 1e-12)


@pytest.mark.parametrize(
    ("latency", "bandwidth", "message"),
    [(-1e-6, 1e9, "latency is not negative"), (0.0, 0.0, "bandwidth is positive")],
)
def test_a_link_that_cannot_be_is_refused(latency: float, bandwidth: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Link(latency_seconds=latency, bytes_per_second=bandwidth)
