"""dpbench project on a terminal; tests/golden has what it prints and refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpbench.cli.app import run
from tests.analysis.projection.sweeps import swept
from tests.cli.stored import stored


def test_columns_that_do_not_fit_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert run(["project", str(stored(tmp_path / "alone", swept((32, 128))))]) == 0
    assert "Not shown at 40 columns: " in " ".join(capsys.readouterr().out.split())
