"""JSON Schemas of the files in a results folder; `python -m tests.records.schemas` writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dpbench.codec import adapter
from dpbench.records.collectives import CollectiveRecord
from dpbench.records.environment import Environment
from dpbench.records.trial import SCHEMA_VERSION, TrialRecord
from dpbench.specs import SweepSpec

FOLDER = Path(__file__).parents[2] / "docs" / "schema"
_VERSION = {"type": "integer", "minimum": 1, "maximum": SCHEMA_VERSION}


def schemas() -> dict[str, Any]:
    """The schema of each kind of file, or of one of its lines."""
    return {
        "trial-record": _with(TrialRecord, schema_version=_VERSION, trial_id={"type": "string"}),
        "collective-record": _with(
            CollectiveRecord, schema_version=_VERSION, collective_id={"type": "string"}
        ),
        "environment": adapter(Environment).json_schema(),
        "sweep-spec": adapter(SweepSpec).json_schema(),
    }


def _with(kind: type, **keys: Any) -> dict[str, Any]:
    schema: dict[str, Any] = adapter(kind).json_schema()
    schema["properties"] = keys | schema["properties"]
    schema["required"] = [*keys, *schema["required"]]
    return schema


def text(schema: Any) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for name, schema in schemas().items():
        (FOLDER / f"{name}.json").write_text(text(schema))
