"""torch's own tests of collectives pass on the backend shm."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.background import Results, Server
from tests.conformance.collectives import NAMES, RANKS

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def shm() -> Iterator[Results]:
    server = Server()
    yield Results(server, "shm")
    server.close()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.timeout(300)
def test_shm_passes(name: str, shm: Results) -> None:
    shm.require(RANKS, NAMES, name)
