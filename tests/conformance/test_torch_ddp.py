"""torch's own tests for DistributedDataParallel pass with ours in its place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.conformance.background import Server
from tests.conformance.cases import FOUR_RANKS, INTERNAL, SLOW, TWO_RANKS, UNFIT

CASES = [(2, name) for name in TWO_RANKS] + [(4, name) for name in FOUR_RANKS]
PINNED = (Path(__file__).parent.parent.parent / "constraints.txt").read_text()
IS_PINNED = f"torch=={torch.__version__.partition('+')[0]}\n" in PINNED
ON_PINNED = pytest.mark.skipif(not IS_PINNED, reason="the tables are those of the pinned torch")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Where torch's tests are imported and run, once for all tests of this file."""
    server = Server()
    yield server
    server.close()


@pytest.mark.parametrize(
    ("world_size", "name"),
    [
        pytest.param(*case, id=case[1], marks=pytest.mark.slow if case[1] in SLOW else ())
        for case in CASES
    ],
)
def test_ours_passes(world_size: int, name: str, server: Server) -> None:
    result = server.outcome("ours", world_size, name)
    if result["status"] == "missing" and not IS_PINNED:
        pytest.skip(f"torch {torch.__version__} has no such test")
    assert result["status"] == "passed", result["detail"]


@ON_PINNED
def test_the_tables_name_every_test_that_builds_a_ddp(server: Server) -> None:
    assert {*TWO_RANKS, *FOUR_RANKS, *INTERNAL, *UNFIT} == server.every_name


@ON_PINNED
@pytest.mark.slow
@pytest.mark.parametrize(
    ("world_size", "name"),
    [pytest.param(*case, id=case[1]) for case in CASES if case[1] not in SLOW],
)
def test_torchs_own_class_passes_what_is_asked_of_ours(
    world_size: int, name: str, server: Server
) -> None:
    result = server.outcome("torch", world_size, name)
    assert result["status"] == "passed", result["detail"]
