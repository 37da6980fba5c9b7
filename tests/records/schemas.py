"""JSON Schemas of the files in a results folder; `python -m tests.records.schemas` writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dpbench.codec import adapter
from dpbench.records.collectives import CollectiveRecord
from dpbench.records.environment import Environment
from dpbench.records.trial import TrialRecord
from dpbench.specs import SweepSpec

FOLDER = Path(__file__).parents[2] / "docs" / "schema"


def schemas() -> dict[str, Any]:
    """The schema of each kind of file, or of one of its lines."""
    return {
        "trial-record": adapter(TrialRecord).json_schema(),
        "collective-record": adapter(CollectiveRecord).json_schema(),
        "environment": adapter(Environment).json_schema(),
        "sweep-spec": adapter(SweepSpec).json_schema(),
    }


def text(schema: Any) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for name, schema in schemas().items():
        (FOLDER / f"{name}.json").write_text(text(schema))
