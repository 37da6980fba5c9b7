"""torch's own tests for DistributedDataParallel pass with ours in its place."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.background import Results, Server
from tests.conformance.wrappers import NAMES, RANKS

pytestmark = pytest.mark.full


@pytest.fixture(scope="module", params=["ddp-gloo", "ddp-shm"])
def ours(request: pytest.FixtureRequest) -> Iterator[Results]:
    server = Server()
    yield Results(server, request.param)
    server.close()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.timeout(300)
def test_ours_passes(name: str, ours: Results) -> None:
    ours.require(RANKS, NAMES, name)
