"""A fault of `make faults`, once, and how counts are printed."""

from __future__ import annotations

import pytest

from tools.faults import FAULTS


@pytest.mark.full
def test_a_fault_is_survived() -> None:
    (fault,) = (one for one in FAULTS if one.name == "a rank killed at a random moment")
    assert [*fault.run(1)] == [None]
