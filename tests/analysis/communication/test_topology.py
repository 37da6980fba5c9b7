"""What an all-reduce takes on a network that is given."""

from __future__ import annotations

import re
from pathlib import Path

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
    load_topology,
    presets,
)
from dpbench.errors import UsageError
from tests.analysis.communication.collective_records import topology

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


FILE = """
ranks_per_node = 8
source = "our cluster"
date = 2026-01-31
launch_us = 10
[intra]
latency_us = 2
gigabytes_per_second = 200
[inter]
latency_us = 10
gigabytes_per_second = 25
"""


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "ours.toml"
    path.write_text(text)
    return str(path)


def test_a_file_is_read_in_its_units(tmp_path: Path) -> None:
    read = load_topology(written(tmp_path, FILE))
    assert (read.name, read.ranks_per_node, read.algorithm) == ("ours", 8, "auto")
    assert read.intra.latency_seconds == pytest.approx(2e-6)
    assert read.inter is not None
    assert read.inter.bytes_per_second == 25e9
    assert read.launch_seconds == pytest.approx(10e-6)
    assert (read.source, read.date) == ("our cluster", "2026-01-31")


def test_without_a_network_there_is_one_node(tmp_path: Path) -> None:
    assert load_topology(written(tmp_path, FILE.split("[inter]")[0])).inter is None


def test_a_lone_rank_of_a_node_needs_no_link_inside(tmp_path: Path) -> None:
    text = FILE.replace("ranks_per_node = 8", "ranks_per_node = 1")
    before, after = text.split("[intra]")
    read = load_topology(written(tmp_path, before + "[inter]" + after.split("[inter]")[1]))
    assert read.intra == read.inter


@pytest.mark.parametrize("name", presets())
def test_presets_say_where_they_are_from_and_cost_something(name: str) -> None:
    preset = load_topology(name)
    assert len(preset.source) > 30
    assert preset.date.startswith("20")
    assert 1e-6 < all_reduce_seconds(preset, 1.0, 2) < 1e-3
    if preset.inter is not None:
        assert all_reduce_seconds(preset, 25e6, 10_000) > all_reduce_seconds(preset, 25e6, 8)


def test_the_presets_that_are_promised_exist() -> None:
    promised = {"h100-nvswitch-ndr", "a100-nvswitch-hdr", "v100-nvlink-100gbe", "pcie4"}
    assert promised | {"tcp-10gbe", "tcp-25gbe", "tcp-100gbe"} <= presets().keys()


def test_an_h100_node_is_near_what_nccl_calculates() -> None:
    # NCCL 2.30 with the same links: 25 MiB take 175, 265, 333 and 384 µs.
    h100 = load_topology("h100-nvswitch-ndr")
    for n, microseconds in ((8, 175), (64, 265), (1024, 333), (10_000, 384)):
        took = all_reduce_seconds(h100, 25 * 2**20, n)
        assert took == pytest.approx(microseconds * 1e-6, rel=0.15)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "latency_us = 2",
            "latency_us = -2",
            "[intra]: latency_us = -2; expected a number from 0 to 1e+06",
        ),
        ("latency_us = 2", "latency_us = 1e300", "latency_us = 1e+300; expected a number from 0"),
        ("= 25", "= 0", "[inter]: gigabytes_per_second = 0; expected a number from 1e-06"),
        ("= 25", "= nan", "gigabytes_per_second = nan; expected a number from 1e-06"),
        ("= 25", "= true", "gigabytes_per_second = True; expected a number from 1e-06"),
        ("= 25", '= "25"', "gigabytes_per_second = '25'; expected a number from 1e-06"),
        ("per_node = 8", "per_node = 0", "ranks_per_node = 0; expected a whole number from 1"),
        ("per_node = 8", "per_node = 8.0", "ranks_per_node = 8.0; expected a whole number"),
        ("ranks_per_node", "rank_per_node", "'rank_per_node'. Did you mean 'ranks_per_node'?"),
        ("launch_us", "lunch_us", "'lunch_us'. Did you mean 'launch_us'?"),
        ("latency_us = 10", "latency = 10", "'latency'. Did you mean 'latency_us'?"),
        ("[intra]\nlatency_us = 2\n", "[intra]\n", "[intra]: latency_us missing; expected"),
        (
            "date = 2026-01-31\n",
            "",
            "date missing; expected ranks_per_node, source, date and [intra]",
        ),
        ('"our cluster"', '" "', "source = ' '; expected a text"),
        ("launch_us = 10", 'algorithm = "rings"', "'rings'. Did you mean 'ring'?"),
        ("launch_us = 10", "backend = 1", "backend = 1; expected a text"),
        ("launch_us = 10", 'backend = "glo"', "'glo'. Did you mean 'gloo'?"),
        ("2026-01-31", '"yesterday"', "date = 'yesterday'; expected one as in 2026-01-31"),
        ("= 25", "= 1e-300", "gigabytes_per_second = 1e-300; expected a number from 1e-06 to"),
        ("launch_us = 10", "launch_us = ", "not TOML: Invalid value (at line 5"),
        ("[intra]", "[outra]", "'outra'. Did you mean 'intra'?"),
    ],
)
def test_what_a_file_gets_wrong_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in FILE
    path = written(tmp_path, FILE.replace(old, new, 1))
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        load_topology(path)
    assert path in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_node_of_several_ranks_needs_its_link(tmp_path: Path) -> None:
    before, after = FILE.split("[intra]")
    path = written(tmp_path, before + "[inter]" + after.split("[inter]")[1])
    with pytest.raises(UsageError, match=r"\[intra\] is missing"):
        load_topology(path)


def test_several_networks_in_one_file_are_told_apart_from_a_wrong_key(tmp_path: Path) -> None:
    path = written(tmp_path, "[ours]\nranks_per_node = 8\n[theirs]\nranks_per_node = 4\n")
    with pytest.raises(UsageError, match=r"one network, without a heading like \[ours\]"):
        load_topology(path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("h100", "Did you mean 'h100-nvswitch-ndr'"),
        ("tcp", "Did you mean 'tcp-10gbe'"),
        ("h100-nvswitch-ndx", "Did you mean 'h100-nvswitch-ndr'"),
        ("this-machine", "leave the topology out"),
        ("nowhere/ours.toml", "No such file or directory"),
    ],
)
def test_a_topology_that_is_not_there(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_topology(name)
