"""NCCL's own expectations: its formulas, and the table in its log."""

from __future__ import annotations

import pytest

from dpbench.analysis.communication.nccl import (
    NcclModel,
    Tuned,
    nccl_cost,
    parse_tuning_table,
    ring_latency,
    tree_latency,
)
from dpbench.errors import UsageError

PREFIX = "node7:4711:4712 [0] NCCL INFO "
SHAPE = f"{PREFIX}comm 0x55 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0\n"
PROTOCOLS = "   LL |  LL128 | Simple |"
TABLE = (
    f"{PREFIX}  Algorithm   |          Tree          |          Ring          |\n"
    f"{PREFIX}  Protocol    |{PROTOCOLS}{PROTOCOLS}\n"
    f"{PREFIX} Max NThreads |    512 |    640 |    512 |    512 |    640 |    256 |\n"
    f"{PREFIX}    Broadcast |  0.0/  0.0 |  0.0/  0.0 |  0.0/  0.0 |  9.3/  1.2 | 18.0/  0.0 | "
    "22.4/  2.4 |\n"
    f"{PREFIX}    AllReduce | 25.2/ 10.0 | 31.0/  0.0 | 36.4/ 40.0 | 26.0/ 20.0 | 55.0/ 80.0 | "
    "90.0/100.0 |\n"
    f"{PREFIX}  Algorithm   |          NVLS          |\n"
    f"{PREFIX}  Protocol    |{PROTOCOLS}\n"
    f"{PREFIX}    AllReduce |  0.0/  0.0 |  0.0/  0.0 | 43.0/200.0 |\n"
)
OLD_TABLE = (
    f"{PREFIX}Latency/AlgBw |    Tree/    LL |    Tree/ LL128 |    Ring/Simple |\n"
    f"{PREFIX} Max NThreads |            512 |            640 |            256 |\n"
    f"{PREFIX}    AllReduce |    25.2/  10.0 |    31.0/   0.0 |    90.0/ 100.0 |\n"
)


def test_latencies_of_two_nodes_of_eight_and_of_one() -> None:
    # 6.8 + 2 (7 × 0.6 + 1 × 5.0), and 6.6 + 14 × 0.6.
    assert tree_latency("LL", 16, 8) == pytest.approx(25.2e-6)
    assert ring_latency("LL", 8, 8) == pytest.approx(15.0e-6)


def test_a_ring_over_nodes_waits_for_the_processor_at_each_step() -> None:
    # 28 of 30 steps at 1 µs of the processor, which is more than 0.6, and 2 at 2.7.
    assert ring_latency("LL", 16, 8) == pytest.approx((6.6 + 28 * 1.0 + 2 * 2.7) * 1e-6)
    # Simple: three times that, less than the 3.4 of its hop.
    assert ring_latency("Simple", 16, 8) == pytest.approx((8.4 + 28 * 3.4 + 2 * 14) * 1e-6)


def test_two_nodes_of_one_rank_are_as_a_log_of_two_hosts_says() -> None:
    # 16.6, 31.0 and 36.4 µs of Ring, 16.8 of Tree/LL in a log of NCCL 2.29.
    logged = [ring_latency(protocol, 2, 1) for protocol in ("LL", "LL128", "Simple")]
    assert logged == pytest.approx([16.6e-6, 31.0e-6, 36.4e-6])
    assert tree_latency("LL", 2, 1) == pytest.approx(16.8e-6)


def test_the_table_is_found_among_other_lines() -> None:
    assert parse_tuning_table(f"epoch 1\n{SHAPE}{TABLE}loss 0.3\n") == {
        ("Tree", "LL"): (25.2, 10.0),
        ("Tree", "LL128"): (31.0, 0.0),
        ("Tree", "Simple"): (36.4, 40.0),
        ("Ring", "LL"): (26.0, 20.0),
        ("Ring", "LL128"): (55.0, 80.0),
        ("Ring", "Simple"): (90.0, 100.0),
        ("NVLS", "LL"): (0.0, 0.0),
        ("NVLS", "LL128"): (0.0, 0.0),
        ("NVLS", "Simple"): (43.0, 200.0),
    }


def test_the_table_of_older_versions_is_read_too() -> None:
    assert parse_tuning_table(OLD_TABLE) == {
        ("Tree", "LL"): (25.2, 10.0),
        ("Tree", "LL128"): (31.0, 0.0),
        ("Ring", "Simple"): (90.0, 100.0),
    }


def test_the_first_communicator_counts() -> None:
    second = TABLE.replace("25.2/ 10.0", "99.9/  9.9")
    assert parse_tuning_table(TABLE + second)["Tree", "LL"] == (25.2, 10.0)


def test_a_second_communicator_fills_no_gaps_and_its_size_does_not_count() -> None:
    lacking = TABLE.split(f"{PREFIX}  Algorithm   |          NVLS")[0]
    other = SHAPE.replace("nRanks 16 nNodes 2", "nRanks 4 nNodes 1")
    assert "NVLS" not in {name for name, _ in parse_tuning_table(lacking + TABLE)}
    cost = nccl_cost(other + SHAPE + lacking + other + TABLE)
    assert "of 16 ranks on 2 nodes" in cost.assumptions[0]
    assert cost.seconds(1e9, 16) == pytest.approx(90e-6 + 1e-2)  # Ring/Simple


def test_at_the_logs_group_size_the_fastest_pair_counts() -> None:
    cost = nccl_cost(SHAPE + TABLE)
    assert cost.seconds(1000, 16) == pytest.approx(25.2e-6 + 1e-7)  # Tree/LL
    assert cost.seconds(1e9, 16) == pytest.approx(43e-6 + 5e-3)  # NVLS/Simple
    assert cost.kind(16) == "projected"


def test_at_other_sizes_ring_and_tree_scale_by_their_formulas() -> None:
    model = NcclModel(
        tuned={("Ring", "LL"): Tuned(latency_seconds=80e-6, bytes_per_second=20e9)},
        group_size=16,
        ranks_per_node=8,
    )
    # The logged 80 µs are twice the formula's 40; of 32 ranks it says 6.6 + 56 + 6 × 2.7 = 78.8.
    # The bandwidth falls as n / (2 (n-1)): 15/16 ÷ 31/32 of it is left.
    expected = 2 * 78.8e-6 + 1e9 / (20e9 * (15 / 16) / (31 / 32))
    assert model.seconds(1e9, 32) == pytest.approx(expected)
    assert model.seconds(1e9, 1) == 0


def test_a_log_of_one_node_knows_no_network() -> None:
    cost = nccl_cost(SHAPE.replace("nNodes 2", "nNodes 1") + TABLE)
    assert cost.kind(8) == "projected"
    assert cost.kind(17) == "refused"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "nRanks"),
        (SHAPE, "no table of all-reduce algorithms"),
        (SHAPE + TABLE.replace("25.2/ 10.0", "25.2; 10.0"), "'25.2; 10.0' in the NCCL log's"),
        (SHAPE + TABLE.replace("25.2/ 10.0 |", ""), "AllReduce has 5 cells below 6 columns"),
        (TABLE + SHAPE, "before a table"),
        (SHAPE.replace("nRanks 16", "nRanks 1") + TABLE, "of one rank"),
        (
            SHAPE + TABLE.split(f"{PREFIX}  Algorithm ")[2].join((f"{PREFIX}  Algorithm ", "")),
            "Ring",
        ),
    ],
)
def test_a_log_that_lacks_something_says_what(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        nccl_cost(text)
