"""These tests need two hosts; a machine that cannot have them skips, except in CI."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.multi_node.hosts import Host, two_hosts, unusable_reason

FAST_LINK = 1e9


@pytest.fixture(autouse=True, scope="session")
def _needs_two_hosts() -> None:
    if (reason := unusable_reason()) is None:
        return
    if os.environ.get("DPBENCH_SKIPS_FAIL"):
        pytest.fail(f"skipped elsewhere, but not in CI: {reason}")
    pytest.skip(reason)


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    """Joined by a link of 1 Gbit/s in each direction."""
    with two_hosts(bits_per_second=FAST_LINK) as hosts:
        yield hosts
