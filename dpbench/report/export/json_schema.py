"""Frozen dataclasses as JSON Schema (2020-12): what `codec` writes and reads, for others.

Descriptions are the docstrings of classes and the strings below their fields, so that a schema
says what the code says.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import inspect
import itertools
import textwrap
import types
import typing
from typing import Any

from dpbench.codec import NOT_FINITE

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
