"""Dataclasses as JSON Schema."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Literal

import pytest
from jsonschema import Draft202012Validator

from dpbench.codec import decode, encode
from dpbench.errors import StoreError
from dpbench.report.export.json_schema import definitions, reference


class Colour(enum.Enum):
    RED = "red"


@dataclass(frozen=True, kw_only=True, slots=True)
class Inner:
    """What is inside."""

    seconds: float
    """Of one
    call."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outer:
    """What is outside."""

    name: str
    inner: tuple[Inner, ...]
    colour: Colour = Colour.RED
    count: int | None = None
    kind: Literal["a", "b"] = "a"


SCHEMA = {**reference(Outer), "$defs": definitions(Outer)}
VALID = {"name": "n", "inner": [{"seconds": 1}, {"seconds": "inf"}], "count": None, "kind": "b"}


def test_the_docstrings_are_the_descriptions() -> None:
    found = definitions(Outer)
    assert set(found) == {"Outer", "Inner"}
    assert found["Inner"] == {
        "description": "What is inside.",
        "type": "object",
        "properties": {
            "seconds": {
                "anyOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}],
                "description": "Of one call.",
            }
        },
        "required": ["seconds"],
        "additionalProperties": False,
    }
    assert found["Outer"]["required"] == ["name", "inner"]


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"name": 3},
        {"inner": None},
        {"inner": [{"seconds": "1"}]},
        {"inner": [{}]},
        {"colour": "blue"},
        {"count": 1.5},
        {"count": True},
        {"kind": "c"},
        {"more": 1},
    ],
)
def test_it_accepts_what_can_be_decoded_and_nothing_else(change: dict[str, object]) -> None:
    value = {**VALID, **change}
    try:
        decode(Outer, value)
    except StoreError:
        decoded = False
    else:
        decoded = True
    assert Draft202012Validator(SCHEMA).is_valid(value) is decoded is not bool(change)


def test_what_is_encoded_is_valid() -> None:
    value = Outer(name="n", inner=(Inner(seconds=float("nan")),), count=3)
    Draft202012Validator(SCHEMA).validate(encode(value))
