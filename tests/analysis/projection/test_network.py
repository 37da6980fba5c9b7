"""All-reduces on networks: sums by hand, and topology files."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpbench.analysis.projection.network import load_topology
from dpbench.errors import UsageError
from tests.analysis.projection.sweeps import topology

MB = 1e6


@pytest.mark.parametrize(
    ("algorithm", "n", "expected"),
    [
        # In one node: 2 (n-1) α + 2 (n-1)/n S/B.
        ("ring", 4, 6 * 2e-6 + 1.5 * 100 * MB / 100e9),
        ("hierarchical", 4, 6 * 2e-6 + 1.5 * 100 * MB / 100e9),
        ("tree", 4, 6 * 2e-6 + 2 * 100 * MB / 100e9),
        # On two nodes of four: 2 of the 14 messages pass between them.
        ("ring", 8, 12 * 2e-6 + 2 * 10e-6 + 1.75 * 100 * MB / 10e9),
        ("tree", 8, 6 * 2e-6 + 2 * 10e-6 + 2 * 100 * MB / 10e9),
        # Four shards travel between the nodes at the same time, over the whole node's link.
        ("hierarchical", 8, 6 * 2e-6 + 1.5 * 100 * MB / 100e9 + 2 * 10e-6 + 100 * MB / 10e9),
    ],
)
def test_times_are_the_sums_of_the_models(algorithm: str, n: int, expected: float) -> None:
    assert topology(algorithm=algorithm).seconds(100 * MB, n) == pytest.approx(expected)
    launched = topology(algorithm=algorithm, launch_us=14)
    assert launched.seconds(100 * MB, n) == pytest.approx(expected + 14e-6)


def test_one_rank_sends_nothing_and_a_single_node_has_an_end() -> None:
    network = topology(inter=None)
    assert network.seconds(MB, 1) == network.seconds(0, 4) == 0
    assert network.refusal(4) is None
    assert "a box is one node of 4 ranks" in (network.refusal(5) or "")


FILE = """
ranks_per_node = 4
source = "a test"
date = 2026-01-31
intra = { latency_us = 2, gigabytes_per_second = 100 }
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (FILE + "algorithm = 'nope'\n", "algorithm: Input should be 'auto', 'ring'"),
        (FILE.replace("intra", "inter"), "[intra] is missing"),
        ("ranks_per_node = ", "expected a TOML file"),
    ],
)
def test_a_wrong_file_is_one_line_that_names_it(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "ours.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as error:
        load_topology(str(path))
    assert str(error.value).startswith(f"{path}: ")
    assert words in str(error.value)
    assert "\n" not in str(error.value)
