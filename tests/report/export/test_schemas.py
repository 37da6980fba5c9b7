"""The JSON Schemas: as files, and against what is really stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError

from dpbench.analysis.frames import collective_rows, rank_rows, step_rows, trial_rows
from dpbench.analysis.levels import configuration_row
from dpbench.analysis.summary import summarize
from dpbench.codec import encode
from dpbench.errors import UnknownName
from dpbench.records.environment import capture
from dpbench.records.trial import SCHEMA_VERSION
from dpbench.report.export.schemas import SCHEMAS, schema, schema_text
from dpbench.store import CollectiveStore, SweepStore
from tests.analysis.communication.collective_records import affine, collective_record
from tests.builders import collective_spec, sweep_spec
from tests.report.sample import sample_records

FILES = Path(__file__).parents[3] / "docs" / "schema"
RECORDS = sample_records()


def validate(name: str, value: Any) -> None:
    Draft202012Validator(schema(name)).validate(value)


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_file_is_what_the_code_says(name: str) -> None:
    """If it is not: dpbench export --schema NAME > docs/schema/NAME.json."""
    Draft202012Validator.check_schema(schema(name))
    assert (FILES / f"{name}.json").read_text() == schema_text(name)


def test_there_is_no_file_without_its_schema() -> None:
    assert {path.stem for path in FILES.iterdir()} == set(SCHEMAS)


def test_an_unknown_schema_is_an_error() -> None:
    with pytest.raises(UnknownName, match=r"unknown schema 'step'\. Did you mean 'step-row'"):
        schema("step")


def test_the_files_of_a_results_folder_are_valid(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    record = collective_record(collective_spec(), affine(1e-5, 1e9))
    with SweepStore.create(folder, sweep_spec(target_loss=1.0), ["dpbench", "sweep"]) as store:
        store.add_environment(capture())
        for trial in RECORDS:
            store.append(trial)
    with CollectiveStore.append_to(folder, ["dpbench", "comm"]) as collectives:
        collectives.append(record)
    for name, file in (("trial-record", "trials"), ("collective-record", "collectives")):
        validator = Draft202012Validator(schema(name))
        for line in (folder / f"{file}.jsonl").read_text().splitlines():
            validator.validate(json.loads(line))
    for name in ("sweep", "comm"):
        validate(name, json.loads((folder / f"{name}.json").read_text()))
    (environment,) = (folder / "environments").iterdir()
    validate("environment", json.loads(environment.read_text()))


def test_what_dpbench_would_not_read_is_not_valid() -> None:
    record = RECORDS[0]
    line = {"schema_version": SCHEMA_VERSION, "trial_id": record.trial.trial_id, **encode(record)}
    validate("trial-record", line)
    with pytest.raises(ValidationError, match="'images' was unexpected"):
        validate("trial-record", {**line, "images": 3})
    with pytest.raises(ValidationError, match="greater than the maximum"):
        validate("trial-record", {**line, "schema_version": SCHEMA_VERSION + 1})
    with pytest.raises(ValidationError, match="is not one of"):
        validate("trial-record", {**line, "status": "ended"})


def test_exported_rows_are_valid_at_every_level() -> None:
    levels = {
        "configuration-row": map(configuration_row, summarize(RECORDS)),
        "trial-row": trial_rows(RECORDS),
        "rank-row": rank_rows(RECORDS),
        "step-row": step_rows(RECORDS[:3]),
        "collective-row": collective_rows(
            [collective_record(collective_spec(), affine(1e-5, 1e9))]
        ),
    }
    for name, rows in levels.items():
        validator = Draft202012Validator(schema(name))
        found = [encode(row) for row in rows]
        assert found
        for row in found:
            validator.validate(row)
