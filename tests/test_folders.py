from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpbench import folders
from dpbench.errors import FileError, UsageError
from dpbench.folders import ResultsFolder
from dpbench.records import environment
from dpbench.records.trial import SCHEMA_VERSION, Status, TrialRecord
from tests.builders import command, sweep_spec
from tests.launch.synthetic import run_trials

SPEC = sweep_spec()
RECORDS = run_trials(SPEC)


def written(folder: Path, records: tuple[TrialRecord, ...] = RECORDS[:3]) -> Path:
    with ResultsFolder.create(folder, command(gpus=2), SPEC) as results:
        for record in records:
            results.append(record)
    return folder


def test_what_was_appended_is_on_disk_at_once_and_read_back(tmp_path: Path) -> None:
    folder = written(tmp_path / "s")
    here = environment.capture()
    with ResultsFolder(folder) as results:
        results.add_environment(here)
        results.append(RECORDS[3])
        stored = folders.load_sweep(folder)
    assert stored.records == RECORDS[:4]
    assert (stored.command, stored.spec) == (command(gpus=2), SPEC)
    assert stored.environments == {here.environment_id: here}
    assert stored.warnings == ()


def test_a_trial_that_was_run_again_counts_once_with_its_last_record(tmp_path: Path) -> None:
    killed = replace(RECORDS[0], status=Status.FAILED, reason="killed")
    folder = written(tmp_path / "s", (killed, *RECORDS[:2]))
    assert folders.load_sweep(folder).records == RECORDS[:2]


@settings(max_examples=60, deadline=None)
@given(kept=st.floats(min_value=0, max_value=1))
def test_a_file_cut_off_anywhere_loses_only_its_last_line(
    tmp_path_factory: pytest.TempPathFactory, kept: float
) -> None:
    folder = written(tmp_path_factory.mktemp("cut") / "s")
    path = folder / folders.TRIALS_FILE
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept)])
    whole = path.read_bytes().count(b"\n")
    stored = folders.load_sweep(folder)
    assert len(stored.records) == whole
    if path.stat().st_size and not path.read_bytes().endswith(b"\n"):
        assert f"read the {whole} before" in stored.warnings[0]
    assert stored.records == RECORDS[: len(stored.records)]
    with ResultsFolder(folder) as results:
        results.append(RECORDS[3])
    again = folders.load_sweep(folder)
    assert again.records == (*stored.records, RECORDS[3])
    assert again.warnings == ()


def test_damage_in_the_middle_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    folder = written(tmp_path / "s")
    path = folder / folders.TRIALS_FILE
    lines = path.read_text().split("\n")
    path.write_text("\n".join([lines[0], lines[1][:50], *lines[2:]]))
    with pytest.raises(FileError, match=r"trials.jsonl:2: not JSON: "):
        folders.load_sweep(folder)


@pytest.mark.parametrize(
    ("changed", "plan", "words"),
    [
        ({"schema_version": 99}, {}, f"schema_version: input should be {SCHEMA_VERSION}, got 99"),
        ({}, {"repetitions": 10**8}, r"spec\.repetitions: .*less than or equal"),
        ({}, {"group_sizes": [4]}, r"spec: .*groups of \(4,\) replicas on 2 devices"),
    ],
)
def test_a_newer_schema_or_a_plan_for_no_machine_is_refused(
    tmp_path: Path, changed: dict[str, int], plan: dict[str, object], words: str
) -> None:
    file = written(tmp_path / "s") / folders.SWEEP_FILE
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, **changed, "spec": {**content["spec"], **plan}}))
    with pytest.raises(FileError, match=rf"sweep\.json: Header\.{words}"):
        folders.load_sweep(file.parent)


def test_a_sweep_with_an_implementation_that_is_not_here_is_refused(tmp_path: Path) -> None:
    planned = replace(SPEC, implementations=("single", "mine"))
    with (
        ResultsFolder.create(tmp_path / "s", command(), planned),
        pytest.raises(FileError, match="no implementation 'mine'; expected one of "),
    ):
        folders.load_sweep(tmp_path / "s")


def test_a_folder_of_several_results_is_refused_with_the_newest(tmp_path: Path) -> None:
    for name in "abcd":
        written(tmp_path / name)
    with pytest.raises(FileError, match=r"of dpbench sweep: \S*/d; \S*/c; \S*/b; and 1 more$"):
        folders.load_sweep(tmp_path)


def test_two_sweeps_cannot_write_to_one_folder(tmp_path: Path) -> None:
    folder = written(tmp_path / "s")
    with ResultsFolder(folder), pytest.raises(FileError, match="is in use"):
        ResultsFolder(folder)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "a:b=c", "a\0b", "a\nb", "\udcff", "--quiet", "x" * 201]
)
def test_a_name_that_is_no_folder_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="expected a plain folder name"):
        folders.check_name(name)
