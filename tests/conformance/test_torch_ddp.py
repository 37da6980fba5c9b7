"""torch's own tests pass: of collectives on shm, and of its wrapper with ours in its place."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance import collectives, wrappers
from tests.conformance.background import Results, Server

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    started = Server()
    yield started
    started.close()


@pytest.fixture(scope="module", params=["ddp-gloo", "ddp-shm"])
def ours(request: pytest.FixtureRequest, server: Server) -> Results:
    return Results(server, request.param)


@pytest.fixture(scope="module")
def shm(server: Server) -> Results:
    return Results(server, "shm")


@pytest.mark.parametrize("name", wrappers.NAMES)
@pytest.mark.timeout(300)
def test_ours_passes(name: str, ours: Results) -> None:
    ours.require(wrappers.RANKS, wrappers.NAMES, name)


@pytest.mark.parametrize("name", collectives.NAMES)
@pytest.mark.timeout(300)
def test_shm_passes(name: str, shm: Results) -> None:
    shm.require(collectives.RANKS, collectives.NAMES, name)
