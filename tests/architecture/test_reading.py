"""Reading results imports nothing that they name: a folder from elsewhere runs no code."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from dpbench import store
from dpbench.cli.app import run

EXAMPLE = Path(__file__).parents[2] / "results/examples/two-cores"
CODE = "from pathlib import Path\nPath(__file__).with_name('was_imported').touch()\n"


def test_reading_results_imports_no_architecture_that_they_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "results")
    (tmp_path / "stranger.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    name = "stranger.py:make"
    _rename(tmp_path / "results/trials.jsonl", name)
    assert {r.trial.workload.architecture for r in store.load(Path("results")).records} == {name}
    assert run(["report", "results", "--no-charts"]) == 0
    assert not Path("was_imported").exists()
    assert "stranger" not in sys.modules


def _rename(trials: Path, name: str) -> None:
    """Gives trials another architecture."""
    lines = []
    for line in trials.read_text().splitlines():
        record = json.loads(line)
        if record["trial"]["batch_size"] != 16 or record["trial"].get("repetition", 0) > 1:
            continue  # less to read, and as much to see
        record["trial"]["workload"]["architecture"] = name
        lines.append(json.dumps(record))
    trials.write_text("\n".join(lines) + "\n")
