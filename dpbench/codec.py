"""Frozen dataclasses to JSON and back, by pydantic, and the hash that identifies their content.

Encoding leaves out every field that is at its default, so that a field added later neither changes
the hash of an old specification nor bloats an old record. Decoding is strict: an unknown key or
another type is an error, never ignored or converted.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import threading
from typing import Annotated, Any, TypeVar, cast

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
)

from dpbench.errors import FileError
from dpbench.messages import escaped

T = TypeVar("T")

NOT_FINITE = ("nan", "inf", "-inf")
MAX_VALUE_SHOWN = 100
"""Characters of a wrong value that an error shows."""
_BUILDING = threading.Lock()
"""Python 3.11 cannot parse source, which pydantic does for docstrings, in two threads at once."""
STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True)


Float = Annotated[
    float,
    Field(allow_inf_nan=True),
    BeforeValidator(lambda value: float(value) if value in NOT_FINITE else value),
    PlainSerializer(lambda value: value if math.isfinite(value) else repr(value)),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"enum": list(NOT_FINITE)}]}),
]
"""A number that may be infinite or NaN, such as the loss of a diverging model. JSON has no such
numbers, so they are stored as text."""


@functools.cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    """Return pydantic's adapter of a type; dataclasses, also those inside of one, are strict."""
    with _BUILDING:
        if dataclasses.is_dataclass(kind):
            kind.__pydantic_config__ = STRICT  # type: ignore[union-attr] # the only way
        return TypeAdapter(kind)


def encode(value: Any) -> Any:
    """Turn a dataclass, or a sequence of them or of plain values, into what json.dumps takes."""
    if dataclasses.is_dataclass(value):
        kind: Any = type(value)
        return adapter(kind).dump_python(value, mode="json", exclude_defaults=True, warnings=False)
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    return value


def decode(kind: type[T], value: Any) -> T:
    """Rebuild a dataclass from what `encode` made of it; raises FileError if it does not fit."""
    try:
        text = json_bytes(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise FileError(_misfit(kind, error)) from None
    return from_json(kind, text)


def from_json(kind: type[T], text: str | bytes) -> T:
    """Rebuild a dataclass or a plain value from JSON text; raises FileError if it does not fit."""
    try:
        value: T = adapter(cast(Any, kind)).validate_json(text)
    except (ValidationError, ValueError, RecursionError) as error:
        raise FileError(_misfit(kind, error)) from None
    return value


def json_bytes(value: Any, indent: int | None = None) -> bytes:
    """JSON as it is stored; "?" stands for bytes in a name of a file that are no UTF-8."""
    separators = (",", ":") if indent is None else None
    text = json.dumps(value, separators=separators, indent=indent, ensure_ascii=False)
    return text.encode(errors="replace")


def content_hash(value: Any, length: int = 12) -> str:
    """Return the first hexadecimal digits of the SHA-256 of the canonical JSON, which has sorted
    keys and no spaces."""
    text = json.dumps(encode(value), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def differing_fields(ours: object, theirs: object) -> list[str]:
    """List "name: theirs -> ours" for every field in which two specifications differ, and
    "name: key theirs -> ours" for those of a dictionary."""
    differences = []
    for field in dataclasses.fields(ours):  # type: ignore[arg-type]
        value, other = getattr(ours, field.name), getattr(theirs, field.name)
        if dataclasses.is_dataclass(value):
            differences += differing_fields(value, other)
        elif isinstance(value, dict):
            for key in {**other, **value}:
                old, new = (each.get(key, "not there") for each in (other, value))
                if old != new:
                    differences.append(f"{field.name}: {key} {old} -> {new}")
        elif value != other:
            differences.append(f"{field.name}: {encode(other)!r} -> {encode(value)!r}")
    return differences


def _misfit(kind: Any, error: Exception) -> str:
    """Name the first wrong value: "TrialRecord.ranks[0].pid: input should be …, got 'x'"."""
    name = getattr(kind, "__name__", str(kind))
    if not isinstance(error, ValidationError):
        return f"{name}: not JSON: {error}"
    first = error.errors(include_url=False)[0]
    if first["type"] == "json_invalid":
        return f"not JSON: {first['ctx']['error']}"
    where = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in first["loc"])
    place = f"{name}{escaped(where, MAX_VALUE_SHOWN)}"
    if first["type"] == "missing":
        return f"{place}: missing"
    what = first["msg"][:1].lower() + first["msg"][1:]
    return f"{place}: {what}, got {escaped(repr(first['input']), MAX_VALUE_SHOWN)}"
