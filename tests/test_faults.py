"""A fault of `make faults`, once."""

from __future__ import annotations

import pytest

from tools.faults import rank_killed


@pytest.mark.full
def test_a_rank_killed_at_a_random_moment_is_named() -> None:
    rank_killed(0)
