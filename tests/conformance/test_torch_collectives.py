"""torch's own tests of collectives pass on the backends shm and shm+gloo."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.background import ON_PINNED, Results, Server
from tests.conformance.collectives import BEYOND_GLOO_SETS, SETS, UNFIT

FEW = 4
"""Ranks of the sets that take little time on two cores."""
SLOW = pytest.mark.slow
RACY_ON_GLOO = "test_barrier_timeout_arg"
"""Each rank's barrier is to time out. The first rank whose barrier does so closes its connections,
and gloo may tell the others of these instead."""
STEADY_ON_GLOO = {
    size: tuple(name for name in names if name != RACY_ON_GLOO) for size, names in SETS.items()
}
ACROSS_HOSTS = {size: names + BEYOND_GLOO_SETS.get(size, ()) for size, names in SETS.items()}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture(scope="module")
def shm(server: Server) -> Results:
    return Results(server, "shm")


@pytest.fixture(scope="module")
def hosts(server: Server) -> Results:
    return Results(server, "shm+gloo")


@pytest.fixture(scope="module")
def gloo(server: Server) -> Results:
    return Results(server, "gloo")


def _cases(sets: dict[int, tuple[str, ...]]) -> list[Any]:
    return [
        pytest.param(size, names, name, id=name, marks=() if size <= FEW else SLOW)
        for size, names in sets.items()
        for name in names
    ]


@pytest.mark.parametrize(("world_size", "names", "name"), _cases(SETS))
@pytest.mark.timeout(300)
def test_shm_passes_what_gloo_passes(
    world_size: int, names: tuple[str, ...], name: str, shm: Results
) -> None:
    shm.require(world_size, names, name)


@pytest.mark.parametrize(("world_size", "names", "name"), _cases(BEYOND_GLOO_SETS))
def test_shm_passes_what_gloo_does_not(
    world_size: int, names: tuple[str, ...], name: str, shm: Results
) -> None:
    shm.require(world_size, names, name)


@pytest.mark.parametrize(("world_size", "names", "name"), _cases(ACROSS_HOSTS))
@pytest.mark.timeout(300)
def test_shm_with_gloo_passes_the_same_on_two_hosts(
    world_size: int, names: tuple[str, ...], name: str, hosts: Results
) -> None:
    hosts.require(world_size, names, name)


@ON_PINNED
def test_the_tables_name_every_other_test(server: Server) -> None:
    listed = [name for names in SETS.values() for name in names]
    listed += [name for names in BEYOND_GLOO_SETS.values() for name in names]
    listed += UNFIT
    assert len(set(listed)) == len(listed)
    assert set(listed) == server.every_collective


@ON_PINNED
@SLOW
@pytest.mark.parametrize(("world_size", "names", "name"), _cases(STEADY_ON_GLOO))
@pytest.mark.timeout(300)
def test_gloo_passes_what_is_asked_of_shm(
    world_size: int, names: tuple[str, ...], name: str, gloo: Results
) -> None:
    gloo.require(world_size, names, name)
