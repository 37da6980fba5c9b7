"""Frozen dataclasses to JSON values and back.

Encoding leaves out every field that is at its default, so that a field added later neither
changes the hash of an old specification nor bloats an old record. Decoding is strict: an unknown
key is an error, never ignored.

What a type asks for is worked out once and kept as a function: a folder may hold a hundred
thousand records.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import json
import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from dpbench.errors import StoreError
from dpbench.messages import printable

T = TypeVar("T")
Decoder = Callable[[Any], Any]

NOT_FINITE = ("nan", "inf", "-inf")
LARGEST_INT = 2**63 - 1
"""More than any count, and what data frames and Parquet can hold."""
LONGEST_SHOWN = 100
"""Characters of a value that is not what it should be."""
PLAIN = (str, int, bool, type(None))

_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, but not tabs and line ends
    "\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069]"  # what turns the direction of writing
)
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


class _Misfit(Exception):
    """A value does not fit; every level that the error passes puts its own name in front of
    `where`."""

    def __init__(self, message: str) -> None:
        self.where = ""
        self.message = message

    def within(self, place: str) -> _Misfit:
        self.where = place + self.where
        return self


def encode(value: Any) -> Any:
    """Turns nested dataclasses, tuples and enums into what the json module writes."""
    kind = type(value)
    if kind in PLAIN:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)  # JSON has no number for it
    if dataclasses.is_dataclass(kind):
        return {
            name: encode(item)
            for name, default in _defaults(kind)
            if (item := getattr(value, name)) is not default and item != default
        }
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {key: encode(item) for key, item in value.items()}
    return value


def decode(kind: type[T], value: Any) -> T:
    """Rebuilds a dataclass from what `encode` made of it; raises StoreError if it does not fit."""
    try:
        return typing.cast(T, _decoder(typing.cast(Any, kind))(value))
    except _Misfit as misfit:
        raise StoreError(f"{kind.__name__}{misfit.where}{misfit.message}") from None


def canonical_json(value: Any) -> str:
    """One text per value: sorted keys, no spaces."""
    return _CANONICAL.encode(encode(value))


def content_hash(value: Any, length: int = 12) -> str:
    """The first hexadecimal digits of the SHA-256 of the canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:length]


@functools.cache
def _defaults(kind: Any) -> tuple[tuple[str, Any], ...]:
    """The fields of a dataclass with their defaults, MISSING where there is none."""
    return tuple((field.name, field.default) for field in dataclasses.fields(kind))


@functools.cache
def _decoder(kind: Any) -> Decoder:
    """The function that checks and rebuilds values of one type; it raises _Misfit."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _optional(*(arm for arm in arguments if arm is not type(None)))
    if origin is tuple:
        return _tuple_of(arguments[0])
    if origin is dict:
        return _dict_of(arguments[1])
    if origin is typing.Literal:
        return _one_of({choice: choice for choice in arguments}, f"one of {arguments}")
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _one_of({member.value: member for member in kind}, f"a {kind.__name__}")
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind)
    return {float: _float, int: _int, str: _text}.get(kind) or _exactly(kind)


def _optional(kind: Any) -> Decoder:
    present = _decoder(kind)
    return lambda value: None if value is None else present(value)


def _tuple_of(kind: Any) -> Decoder:
    item = _decoder(kind)

    def decode_tuple(value: Any) -> tuple[Any, ...]:
        _expect(type(value) is list, "a list", value)
        if kind is float and {*map(type, value)} <= {float}:  # a window of steps: no item differs
            return tuple(value)
        items = []
        try:
            for entry in value:
                items.append(item(entry))
        except _Misfit as misfit:
            raise misfit.within(f"[{len(items)}]") from None
        return tuple(items)

    return decode_tuple


def _dict_of(kind: Any) -> Decoder:
    item = _decoder(kind)

    def decode_dict(value: Any) -> dict[str, Any]:
        _expect(type(value) is dict, "an object", value)
        decoded = {}
        for key, entry in value.items():
            try:
                decoded[_text(key)] = item(entry)
            except _Misfit as misfit:
                raise misfit.within(f".{_shown(key)}") from None
        return decoded

    return decode_dict


def _one_of(choices: dict[Any, Any], expected: str) -> Decoder:
    names = tuple(choices)  # a list, which may be what is there, is no key of a dict

    def decode_choice(value: Any) -> Any:
        _expect(value in names, expected, value)
        return choices[value]

    return decode_choice


def _dataclass(kind: Any) -> Decoder:
    fields = dataclasses.fields(kind)
    hints = typing.get_type_hints(kind)
    decoders = {field.name: _decoder(hints[field.name]) for field in fields}
    required = {field.name for field in fields if field.default is dataclasses.MISSING}

    def decode_dataclass(value: Any) -> Any:
        _expect(type(value) is dict, "an object", value)
        if not value.keys() <= decoders.keys():
            unknown = min(value.keys() - decoders.keys())
            raise _Misfit(f" has an unknown field {_shown(unknown)}; known: {', '.join(decoders)}")
        if not required <= value.keys():
            missing = next(name for name in decoders if name in required - value.keys())
            raise _Misfit(f" lacks the field {missing!r}")
        decoded = {}
        for name, entry in value.items():
            try:
                decoded[name] = decoders[name](entry)
            except _Misfit as misfit:
                raise misfit.within(f".{name}") from None
        return kind(**decoded)

    return decode_dataclass


def _float(value: Any) -> float:
    if type(value) is not float:
        _expect(type(value) is int or value in NOT_FINITE, "a number", value)
        try:
            return float(value)
        except OverflowError:
            raise _Misfit(": expected a number that a float can hold") from None
    return value


def _int(value: Any) -> int:
    _expect(type(value) is int, "int", value)
    if abs(value) > LARGEST_INT:
        raise _Misfit(f": expected a whole number within ± {LARGEST_INT}")
    return value  # type: ignore[no-any-return]


def _text(value: Any) -> str:
    """Bytes of a name that were no UTF-8 become escapes, and so does what a terminal would act
    upon: a file from elsewhere must be safe to print, wherever its texts end up."""
    _expect(type(value) is str, "str", value)
    if value.isprintable():
        return value  # type: ignore[no-any-return]
    plain = value.encode("utf-8", "backslashreplace").decode()
    return _UNPRINTABLE.sub(lambda found: repr(found[0])[1:-1], plain)


def _exactly(kind: type) -> Decoder:
    def check(value: Any) -> Any:
        _expect(type(value) is kind, kind.__name__, value)
        return value

    return check


def _expect(condition: bool, expected: str, got: Any) -> None:
    if not condition:
        raise _Misfit(f": expected {expected}, got {_shown(got)}")


def _shown(value: Any) -> str:
    """The value from the file, shortened, since it may be of any size."""
    return printable(repr(value), LONGEST_SHOWN)


def differing_fields(
    ours: object, theirs: object, names: Mapping[str, str] | None = None
) -> list[str]:
    """Lists "name: theirs -> ours" for every field in which two specifications differ.

    `names` are what users call fields, where that is another name.
    """
    differences = []
    for field in dataclasses.fields(ours):  # type: ignore[arg-type]
        mine, other = getattr(ours, field.name), getattr(theirs, field.name)
        if dataclasses.is_dataclass(mine):
            differences += differing_fields(mine, other, names)
        elif mine != other:
            name = (names or {}).get(field.name, field.name)
            differences.append(f"{name}: {encode(other)!r} -> {encode(mine)!r}")
    return differences
