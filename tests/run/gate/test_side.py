"""The process that measures a side of a check; what it measures is tested with the command."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from dpbench.run.gate import side
from dpbench.run.gate.side import SidePlace, start_side


def test_a_process_that_takes_long_to_end_is_killed_and_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side, "END_SECONDS", 0.0)
    with start_side(SidePlace(label="now", directory=tmp_path)) as process:
        pass
    assert process._process.returncode == -signal.SIGKILL
