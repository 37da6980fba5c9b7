"""Collectives in a results folder."""

from __future__ import annotations

import json
from pathlib import Path

from dpbench import store
from dpbench.launch.collectives import run_collectives
from dpbench.records import environment
from dpbench.store import CollectiveStore
from tests.analysis.collective_records import collective_spec
from tests.launch.synthetic import run_collective

SPECS = (
    collective_spec(samples=3),
    collective_spec(backend="shm"),
)
RECORDS = tuple(run_collectives(SPECS, run_collective, environment_id="e"))
HERE = environment.capture()


def written(folder: Path) -> Path:
    """Write the records; return the folder."""
    with CollectiveStore.create(folder, ["comm"]) as results:
        results.add_environment(HERE)
        for record in RECORDS:
            results.append(record)
    return folder


def test_what_was_appended_is_read_back(tmp_path: Path) -> None:
    stored = store.load_collectives(written(tmp_path / "c"))
    assert stored.records == RECORDS
    assert stored.environments == {HERE.environment_id: HERE}
    assert stored.warnings == ()
    header = json.loads((tmp_path / "c" / store.COMM_FILE).read_text())
    assert header["command"] == ["comm"]
