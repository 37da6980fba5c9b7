"""torch's own tests for DistributedDataParallel pass with ours in its place."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.background import ON_PINNED, Results, Server
from tests.conformance.cases import FOUR_RANKS, INTERNAL, SLOW, TWO_RANKS, UNFIT

SETS = ((2, tuple(name for name in TWO_RANKS if name not in SLOW)), (4, FOUR_RANKS))
CASES = [pytest.param(size, names, name, id=name) for size, names in SETS for name in names]
SLOW_CASES = [pytest.param(2, (name,), name, id=name, marks=pytest.mark.slow) for name in SLOW]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Where torch's tests are imported and run, once for all tests of this file."""
    server = Server()
    yield server
    server.close()


@pytest.fixture(scope="module")
def ours(server: Server) -> Results:
    return Results(server, "ours")


@pytest.fixture(scope="module")
def torchs(server: Server) -> Results:
    return Results(server, "torch")


@pytest.mark.parametrize(("world_size", "names", "name"), CASES + SLOW_CASES)
@pytest.mark.timeout(300)
def test_ours_passes(world_size: int, names: tuple[str, ...], name: str, ours: Results) -> None:
    ours.require(world_size, names, name)


@ON_PINNED
def test_the_tables_name_every_test_that_builds_a_ddp(server: Server) -> None:
    assert {*TWO_RANKS, *FOUR_RANKS, *INTERNAL, *UNFIT} == server.every_name


@ON_PINNED
@pytest.mark.slow
@pytest.mark.parametrize(("world_size", "names", "name"), CASES)
@pytest.mark.timeout(300)
def test_torchs_own_class_passes_what_is_asked_of_ours(
    world_size: int, names: tuple[str, ...], name: str, torchs: Results
) -> None:
    torchs.require(world_size, names, name)
