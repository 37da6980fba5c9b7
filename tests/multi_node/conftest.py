"""These tests need two hosts; a machine that cannot have them skips, except in CI."""

from __future__ import annotations

import os

import pytest

from tests.multi_node.hosts import unusable_reason


@pytest.fixture(autouse=True)
def _needs_two_hosts() -> None:
    if (reason := unusable_reason()) is None:
        return
    if os.environ.get("DPBENCH_SKIPS_FAIL"):
        pytest.fail(f"skipped elsewhere, but not in CI: {reason}")
    pytest.skip(reason)
