"""Frozen dataclasses to JSON values and back.

Encoding leaves out every field that is at its default, so that a field added later neither
changes the hash of an old specification nor bloats an old record. Decoding is strict: an unknown
key is an error, never ignored.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
import math
import types
import typing
from typing import Any, TypeVar

from dpbench.errors import StoreError

T = TypeVar("T")

NOT_FINITE = ("nan", "inf", "-inf")


def encode(value: Any) -> Any:
    """Turns nested dataclasses, tuples and enums into what the json module writes."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: encode(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if not _at_default(field, getattr(value, field.name))
        }
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)  # JSON has no number for it
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {key: encode(item) for key, item in value.items()}
    return value


def decode(kind: type[T], value: Any) -> T:
    """Rebuilds a dataclass from what `encode` made of it; raises StoreError if it does not fit."""
    return typing.cast(T, _decode(kind, value, kind.__name__))


def canonical_json(value: Any) -> str:
    """One text per value: sorted keys, no spaces."""
    return json.dumps(encode(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def content_hash(value: Any, length: int = 12) -> str:
    """The first hexadecimal digits of the SHA-256 of the canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:length]


def _at_default(field: dataclasses.Field[Any], value: Any) -> bool:
    return field.default is not dataclasses.MISSING and bool(value == field.default)


def _decode(kind: Any, value: Any, where: str) -> Any:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _decode_optional(kind, value, where)
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(kind, value, where)
    if origin is typing.Literal:
        _expect(value in typing.get_args(kind), where, f"one of {typing.get_args(kind)}", value)
        return value
    if origin is tuple:
        return _decode_tuple(kind, value, where)
    if origin is dict:
        _expect(isinstance(value, dict), where, "an object", value)
        item_kind = typing.get_args(kind)[1]
        return {key: _decode(item_kind, item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        _expect(value in [member.value for member in kind], where, f"a {kind.__name__}", value)
        return kind(value)
    if kind is float:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        _expect(number or value in NOT_FINITE, where, "a number", value)
        return float(value)
    _expect(type(value) is kind, where, f"{kind.__name__}", value)
    return value


def _decode_optional(kind: Any, value: Any, where: str) -> Any:
    kinds = [arm for arm in typing.get_args(kind) if arm is not type(None)]
    return None if value is None else _decode(kinds[0], value, where)


def _decode_tuple(kind: Any, value: Any, where: str) -> tuple[Any, ...]:
    _expect(isinstance(value, list), where, "a list", value)
    item_kind = typing.get_args(kind)[0]
    return tuple(_decode(item_kind, item, f"{where}[{i}]") for i, item in enumerate(value))


def _decode_dataclass(kind: Any, value: Any, where: str) -> Any:
    _expect(isinstance(value, dict), where, "an object", value)
    hints = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    unknown = sorted(set(value) - set(fields))
    if unknown:
        raise StoreError(f"{where} has an unknown field {unknown[0]!r}; known: {', '.join(fields)}")
    missing = [
        name
        for name, field in fields.items()
        if name not in value and field.default is dataclasses.MISSING
    ]
    if missing:
        raise StoreError(f"{where} lacks the field {missing[0]!r}")
    return kind(**{k: _decode(hints[k], v, f"{where}.{k}") for k, v in value.items()})


def _expect(condition: bool, where: str, expected: str, got: Any) -> None:
    if not condition:
        raise StoreError(f"{where}: expected {expected}, got {got!r}")
