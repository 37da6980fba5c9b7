"""JSON Schemas of what dpbench stores and exports, generated from the code that does it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial

from dpbench.analysis.fields.field import Field, FieldKind
from dpbench.analysis.fields.levels import LEVELS
from dpbench.codec import NOT_FINITE
from dpbench.collectives import CollectiveRecord
from dpbench.environment import Environment
from dpbench.errors import UnknownName
from dpbench.records import SCHEMA_VERSION, TrialRecord
from dpbench.report.export.json_schema import DIALECT, Schema, definitions, object_of, reference
from dpbench.specs import SweepSpec

_TYPES: dict[FieldKind, str] = {
    "text": "string",
    "integer": "integer",
    "number": "number",
    "boolean": "boolean",
}
_VERSION: Schema = {"type": "integer", "minimum": 1, "maximum": SCHEMA_VERSION}
"""A later version only adds fields that may be absent."""
_TEXT: Schema = {"type": "string"}
_COMMAND: Schema = {"type": "array", "items": _TEXT, "description": "The command that was typed."}


def schema(name: str) -> Schema:
    """One of SCHEMAS; raises UnknownName."""
    if name not in SCHEMAS:
        raise UnknownName("schema", name, SCHEMAS)
    title, build = SCHEMAS[name]
    return {
        "$schema": DIALECT,
        "$id": f"urn:dpbench:{name}:{SCHEMA_VERSION}",
        "title": f"{title}, schema version {SCHEMA_VERSION}",
        **build(),
    }


def schema_text(name: str) -> str:
    """The schema as the text of a file."""
    return json.dumps(schema(name), indent=2, ensure_ascii=False) + "\n"


def _line(kind: type, identifier: str) -> Schema:
    """A record as it stands in its file: with the version and the hash of what was asked for."""
    found = definitions(kind)
    own = found.pop(kind.__name__)
    properties = {"schema_version": _VERSION, identifier: _TEXT, **own["properties"]}
    required = ["schema_version", identifier, *own["required"]]
    return {
        "description": own["description"],
        **object_of(properties, required),
        "$defs": found,
    }


def _sweep() -> Schema:
    properties = {
        "schema_version": _VERSION,
        "command": _COMMAND,
        "sweep": reference(SweepSpec),
    }
    return {**object_of(properties, properties), "$defs": definitions(SweepSpec)}


def _collectives_header() -> Schema:
    return object_of(
        {"schema_version": _VERSION, "command": _COMMAND}, ("schema_version", "command")
    )


def _environment() -> Schema:
    return {**reference(Environment), "$defs": definitions(Environment)}


def _rows(level: str) -> Schema:
    return row_schema(LEVELS[level])


def row_schema(fields: Iterable[Field]) -> Schema:
    """The schema of one exported row: every key is there, null where nothing was measured."""
    properties = {field.key: _property(field) for field in fields}
    return object_of(properties, properties)


def _property(field: Field) -> Schema:
    names = _TYPES[field.kind] if field.required else [_TYPES[field.kind], "null"]
    value: Schema = {"type": names}
    if field.choices:
        value = {"enum": [*field.choices, *([] if field.required else [None])]}
    if not field.finite:
        value = {"anyOf": [value, {"enum": list(NOT_FINITE)}]}
    return {**value, "description": field.meaning}


SCHEMAS: dict[str, tuple[str, Callable[[], Schema]]] = {
    "trial-record": (
        "A line of trials.jsonl",
        partial(_line, TrialRecord, "trial_id"),
    ),
    "collective-record": (
        "A line of collectives.jsonl",
        partial(_line, CollectiveRecord, "collective_id"),
    ),
    "sweep": ("sweep.json", _sweep),
    "comm": ("comm.json", _collectives_header),
    "environment": ("A file in environments/", _environment),
    **{f"{level}-row": (f"An exported {level} row", partial(_rows, level)) for level in LEVELS},
}
"""Each with its title; --schema takes their names, docs/schema/ has them as files."""
