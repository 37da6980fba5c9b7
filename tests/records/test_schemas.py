"""The JSON Schemas in docs/schema, against the code and against what is really stored."""

from __future__ import annotations

import json
from pathlib import Path

from jsonschema import Draft202012Validator

from dpbench.folders import ResultsFolder
from dpbench.records.environment import capture
from tests.analysis.collective_records import collective_record, collective_spec
from tests.builders import command, sweep_spec
from tests.records.schemas import FOLDER, schemas, text
from tests.report.sample import sample_records


def test_the_documented_schemas_are_current() -> None:
    """Otherwise run: python -m tests.records.schemas."""
    expected = {f"{name}.json": text(schema) for name, schema in schemas().items()}
    assert {path.name: path.read_text() for path in FOLDER.iterdir()} == expected


def test_the_files_of_a_results_folder_are_valid(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    with ResultsFolder.create(folder, command(), sweep_spec()) as store:
        store.add_environment(capture())
        for trial in sample_records():
            store.append(trial)
    comm = tmp_path / "comm"
    with ResultsFolder.create(comm, command("comm")) as collectives:
        collectives.append(collective_record(collective_spec()))
    validators = {name: Draft202012Validator(schema) for name, schema in schemas().items()}
    files = {
        "trial-record": folder / "trials.jsonl",
        "collective-record": comm / "collectives.jsonl",
    }
    for name, file in files.items():
        for line in file.read_text().splitlines():
            validators[name].validate(json.loads(line))
            assert not validators[name].is_valid(json.loads(line) | {"unknown": 3})
    (environment,) = (folder / "environments").iterdir()
    validators["environment"].validate(json.loads(environment.read_text()))
    validators["sweep-spec"].validate(json.loads((folder / "sweep.json").read_text())["spec"])
