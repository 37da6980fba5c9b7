"""What a tidy row holds under one key: its type and its meaning, defined once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from dpbench.analysis.estimate import Estimate

Plain = str | int | float | bool | None
FieldKind = Literal["text", "integer", "number", "boolean"]

S = TypeVar("S")


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """One key of the rows of a level; its unit is in the key."""

    key: str
    kind: FieldKind
    meaning: str
    """One sentence."""
    required: bool = False
    """Never None."""
    choices: tuple[str, ...] = ()
    """All values that a text can have, where they are known."""
    finite: bool = True
    """False where infinity and NaN are values too, as of a loss that diverged."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadField(Field, Generic[S]):
    """A field that is read from one value, such as a record."""

    read: Callable[[S], Plain]


def read_row(fields: Sequence[ReadField[S]], source: S) -> dict[str, Plain]:
    """One row, with the keys in the order of the fields."""
    return {field.key: field.read(source) for field in fields}


def text(key: str, meaning: str, read: Callable[[S], Plain], **more: Any) -> ReadField[S]:
    return ReadField(key=key, kind="text", meaning=meaning, read=read, **more)


def integer(key: str, meaning: str, read: Callable[[S], Plain], **more: Any) -> ReadField[S]:
    return ReadField(key=key, kind="integer", meaning=meaning, read=read, **more)


def number(key: str, meaning: str, read: Callable[[S], Plain], **more: Any) -> ReadField[S]:
    return ReadField(key=key, kind="number", meaning=meaning, read=read, **more)


def boolean(key: str, meaning: str, read: Callable[[S], Plain], **more: Any) -> ReadField[S]:
    return ReadField(key=key, kind="boolean", meaning=meaning, read=read, **more)


def with_interval(
    key: str, meaning: str, read: Callable[[S], Estimate | None], **more: Any
) -> tuple[ReadField[S], ...]:
    """The value under `key`, the ends of its interval under `key`_low and `key`_high."""
    ends = (
        ("", meaning, lambda e: e.value),
        ("_low", f"Lower end of the 95 % interval of {key}", lambda e: e.low),
        ("_high", f"Upper end of the 95 % interval of {key}", lambda e: e.high),
    )

    def read_end(end: Callable[[Estimate], float | None]) -> Callable[[S], Plain]:
        def read_source(source: S) -> Plain:
            estimate = read(source)
            return None if estimate is None else end(estimate)

        return read_source

    return tuple(
        number(f"{key}{suffix}", f"{words}.", read_end(end), **more) for suffix, words, end in ends
    )
