"""JSON Schemas of what dpbench stores and exports, generated from the code that does it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from dpbench.analysis.fields import Field, FieldKind
from dpbench.analysis.levels import LEVELS
from dpbench.codec import NOT_FINITE, adapter
from dpbench.errors import UnknownName
from dpbench.records.collectives import CollectiveRecord
from dpbench.records.environment import Environment
from dpbench.records.trial import SCHEMA_VERSION, TrialRecord
from dpbench.specs import SweepSpec

DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]
_TEXT: Schema = {"type": "string"}
_VERSION: Schema = {"type": "integer", "minimum": 1, "maximum": SCHEMA_VERSION}
"""A later version only adds fields that may be absent."""


def schema_of(kind: type) -> Schema:
    """The schema of a dataclass and of all that it holds; docstrings are the descriptions.

    A field that has a default may be absent, which then is its value; no other keys are allowed.
    """
    whole = adapter(kind).json_schema()
    plain: Schema = _without_titles(whole)
    return plain


def object_of(properties: dict[str, Schema], required: Iterable[str]) -> Schema:
    """An object with these keys and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _without_titles(value: Any, *, of_names: bool = False) -> Any:
    """Leaves out pydantic's titles, which repeat the names of fields, and unwraps descriptions."""
    if isinstance(value, list):
        return [_without_titles(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: " ".join(item.split())
        if key == "description" and isinstance(item, str)
        else _without_titles(item, of_names=key in ("properties", "$defs"))
        for key, item in value.items()
        if of_names or key != "title"
    }


_TYPES: dict[FieldKind, str] = {
    "text": "string",
    "integer": "integer",
    "number": "number",
    "boolean": "boolean",
}
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
    own = schema_of(kind)
    return {
        **own,
        "properties": {"schema_version": _VERSION, identifier: _TEXT, **own["properties"]},
        "required": ["schema_version", identifier, *own["required"]],
    }


def _sweep() -> Schema:
    spec = schema_of(SweepSpec)
    properties = {
        "schema_version": _VERSION,
        "command": _COMMAND,
        "sweep": {"$ref": "#/$defs/SweepSpec"},
    }
    found = {**spec.pop("$defs"), "SweepSpec": spec}
    return {**object_of(properties, properties), "$defs": found}


def _collectives_header() -> Schema:
    return object_of(
        {"schema_version": _VERSION, "command": _COMMAND}, ("schema_version", "command")
    )


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
    "trial-record": ("A line of trials.jsonl", partial(_line, TrialRecord, "trial_id")),
    "collective-record": (
        "A line of collectives.jsonl",
        partial(_line, CollectiveRecord, "collective_id"),
    ),
    "sweep": ("sweep.json", _sweep),
    "comm": ("comm.json", _collectives_header),
    "environment": ("A file in environments/", partial(schema_of, Environment)),
    **{f"{level}-row": (f"An exported {level} row", partial(_rows, level)) for level in LEVELS},
}
"""Each with its title; --schema takes their names, docs/schema/ has them as files."""
