"""JSON Schemas of what dpbench stores and exports, generated from the code that does it."""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import inspect
import itertools
import json
import textwrap
import types
import typing
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from dpbench.analysis.fields.field import Field, FieldKind
from dpbench.analysis.fields.levels import LEVELS, WORK_COLUMNS
from dpbench.codec import NOT_FINITE
from dpbench.errors import UnknownName
from dpbench.records.collectives import CollectiveRecord
from dpbench.records.environment import Environment
from dpbench.records.trial import SCHEMA_VERSION, TrialRecord
from dpbench.specs import SweepSpec

DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]

_PLAIN: dict[Any, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    bool: {"type": "boolean"},
    float: {"anyOf": [{"type": "number"}, {"enum": list(NOT_FINITE)}]},
}


def definitions(kind: type) -> dict[str, Schema]:
    """The schema of a dataclass and of all that it holds, by the names of the classes.

    A field that has a default may be absent, which then is its value; no other keys are allowed.
    """
    found: dict[str, Schema] = {}
    _collect(kind, found)
    return found


def reference(kind: type) -> Schema:
    """Points to the schema of a dataclass among "$defs"."""
    return {"$ref": f"#/$defs/{kind.__name__}"}


def object_of(properties: dict[str, Schema], required: typing.Iterable[str]) -> Schema:
    """An object with these keys and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _collect(kind: type, found: dict[str, Schema]) -> None:
    if kind.__name__ in found:
        return
    found[kind.__name__] = {}
    hints = typing.get_type_hints(kind)
    said: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if dataclasses.is_dataclass(base):
            said |= _field_docstrings(base)
    properties = {}
    for field in dataclasses.fields(kind):
        properties[field.name] = _of(hints[field.name], found)
        if field.name in said:
            properties[field.name] |= {"description": said[field.name]}
    found[kind.__name__] = {
        "description": _one_paragraph(kind.__doc__ or ""),
        **object_of(
            properties,
            (f.name for f in dataclasses.fields(kind) if f.default is dataclasses.MISSING),
        ),
    }


def _of(hint: Any, found: dict[str, Schema]) -> Schema:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        (present,) = (arm for arm in arguments if arm is not types.NoneType)
        return {"anyOf": [_of(present, found), {"type": "null"}]}
    if origin is tuple:
        return {"type": "array", "items": _of(arguments[0], found)}
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return {"enum": [member.value for member in hint]}
    if dataclasses.is_dataclass(hint):
        _collect(typing.cast(type, hint), found)
        return reference(typing.cast(type, hint))
    return dict(_PLAIN[hint])


@functools.cache
def _field_docstrings(kind: type) -> dict[str, str]:
    """The strings that stand below the fields in the source of a class."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    body = typing.cast(ast.ClassDef, tree).body
    return {
        field.target.id: _one_paragraph(string.value.value)
        for field, string in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(string, ast.Expr)
        and isinstance(string.value, ast.Constant)
        and isinstance(string.value.value, str)
    }


def _one_paragraph(text: str) -> str:
    return " ".join(text.split())


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


def _rows(level: str) -> Schema:
    return row_schema(LEVELS[level], WORK_COLUMNS if level == "configuration" else ())


def row_schema(fields: Iterable[Field], of_some: Iterable[Field] = ()) -> Schema:
    """The schema of one exported row: every key is there, null where nothing was measured, but for
    those `of_some` rows."""
    properties = {field.key: _property(field) for field in fields}
    more = {field.key: _property(field) for field in of_some}
    return object_of(properties | more, properties)


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
    "environment": (
        "A file in environments/",
        lambda: {**reference(Environment), "$defs": definitions(Environment)},
    ),
    **{f"{level}-row": (f"An exported {level} row", partial(_rows, level)) for level in LEVELS},
}
"""Each with its title; --schema takes their names, docs/schema/ has them as files."""
