"""Collectives in a results folder: alone, beside a sweep, cut off."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dpbench import store
from dpbench.errors import StoreError
from dpbench.launch.collectives import run_collectives
from dpbench.records import environment
from dpbench.store import CollectiveStore, SweepStore
from tests.analysis.communication.collective_records import collective_spec
from tests.builders import sweep_spec
from tests.launch.synthetic import SyntheticCollectives

SPECS = (
    collective_spec(samples=3),
    collective_spec(backend="shm"),
)
RECORDS = tuple(
    run_collectives(SPECS, SyntheticCollectives(), environment_id="e", time_limit_seconds=1)
)


def written(folder: Path) -> Path:
    with CollectiveStore.append_to(folder, ["comm"]) as results:
        for record in RECORDS:
            results.append(record)
    return folder / store.COLLECTIVES_FILE


def test_what_was_appended_is_read_back(tmp_path: Path) -> None:
    written(tmp_path / "c")
    here = environment.capture()
    with CollectiveStore.append_to(tmp_path / "c", ["comm", "again"]) as results:
        results.add_environment(here)
        results.append(RECORDS[0])
    stored = store.load_collectives(tmp_path / "c")
    assert stored.records == (*RECORDS, RECORDS[0])
    assert stored.environments == {here.environment_id: here}
    assert stored.warnings == ()
    header = json.loads((tmp_path / "c" / store.COMM_FILE).read_text())
    assert header["command"] == ["comm"]


def test_a_sweep_keeps_its_trials_when_collectives_are_added(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    SweepStore.create(folder, sweep_spec(), ["sweep"]).close()
    assert not store.holds_collectives(folder)
    with pytest.raises(
        StoreError, match=r"has no comm\.json; expected a results folder of dpbench"
    ):
        store.load_collectives(folder)
    before = (folder / store.SWEEP_FILE).read_bytes()
    written(folder)
    assert (folder / store.SWEEP_FILE).read_bytes() == before
    assert store.load(folder).spec == sweep_spec()
    assert store.load_collectives(folder).records == RECORDS


def test_a_folder_of_something_else_gets_nothing_added(tmp_path: Path) -> None:
    photo = tmp_path / "photos" / "a.png"
    photo.parent.mkdir()
    photo.write_bytes(b"png")
    with pytest.raises(StoreError, match="is no results folder"):
        CollectiveStore.append_to(tmp_path / "photos", [])
    assert list((tmp_path / "photos").iterdir()) == [photo]
