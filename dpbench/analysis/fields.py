"""What a field is: the key, meaning, unit and style of one number, and how it is read.

Fields are the columns of tables and of frames, and the keys of exported rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Generic, Literal, TypeVar

from dpbench.analysis.estimate import Estimate

Plain = str | int | float | bool | None
FieldKind = Literal["text", "integer", "number", "boolean"]
Style = Literal[
    "plain",
    "rate",
    "ratio",
    "percent",
    "share",
    "fraction",
    "time",
    "duration",
    "significant",
    "memory",
    "traffic",
    "gigabytes",
    "gigabytes alone",
    "grouped",
    "error",
    "check",
]
"""Style in which a value is printed; `report.values` has the writer of each."""
Shown = Literal["always", "if measured", "on request"]
"""When a table has the column without --columns. "if measured": a table without any value of it
does not mention the column."""


@dataclass(frozen=True, slots=True)
class Worded:
    """A value, and the text that tables print for it; empty for the value itself."""

    plain: Plain | Estimate
    words: str


Value = Plain | Estimate | Worded
NOISY = "too noisy"
"""Text of a speed whose interval says nothing, see `Estimate.is_too_noisy`."""
S = TypeVar("S")


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """One key in the rows of a level, and the table column that shows it."""

    key: str
    kind: FieldKind = "number"
    meaning: str = ""
    """Meaning in one sentence, for the columns of tables."""
    unit: str = ""
    ends: bool = False
    """True for estimates whose interval is in `key`_low and `key`_high."""
    header: str = ""
    """Column header; empty if no table has it; "{Item}" is replaced by the architecture's item:
    Images, Tokens."""
    style: Style = "plain"
    shown: Shown = "on request"

    @property
    def is_words(self) -> bool:
        """Whether its column is aligned left."""
        return self.kind in ("text", "boolean")


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadField(Field, Generic[S]):
    """A field that is read from one value, such as a rank's measurement."""

    read: Callable[[S], Value]


# Without `read` the value is the attribute of the key's name.


def text(
    key: str, meaning: str = "", read: Callable[[S], Value] | None = None, **more: Any
) -> ReadField[S]:
    return ReadField(key=key, kind="text", meaning=meaning, read=read or attrgetter(key), **more)


def integer(
    key: str, meaning: str = "", read: Callable[[S], Value] | None = None, **more: Any
) -> ReadField[S]:
    return ReadField(key=key, kind="integer", meaning=meaning, read=read or attrgetter(key), **more)


def number(
    key: str, meaning: str = "", read: Callable[[S], Value] | None = None, **more: Any
) -> ReadField[S]:
    return ReadField(key=key, kind="number", meaning=meaning, read=read or attrgetter(key), **more)


def plain(value: Value) -> Plain:
    """The value as programs read it: an estimate without its interval."""
    found = _simple(value)
    return found.value if isinstance(found, Estimate) else found


def flat(declared: Iterable[ReadField[S]]) -> Iterator[ReadField[S]]:
    """The same fields, with one more for each end of an interval."""
    for field in declared:
        yield field
        if field.ends:
            for place, name in enumerate(("low", "high")):
                yield number(
                    f"{field.key}_{name}",
                    f"{'Upper' if place else 'Lower'} end of the 95 % interval of {field.key}.",
                    _end(field.read, place),
                    unit=field.unit,
                )


def read_row(declared: Sequence[ReadField[S]], source: S) -> dict[str, Plain]:
    """One row, with the keys in the order of the fields, which are `flat`."""
    return {field.key: plain(field.read(source)) for field in declared}


def _end(read: Callable[[S], Value], place: int) -> Callable[[S], Plain]:
    def read_end(source: S) -> Plain:
        value = _simple(read(source))
        known = isinstance(value, Estimate) and value.interval
        return known[place] if known else None

    return read_end


def _simple(value: Value) -> Plain | Estimate:
    if value is None or isinstance(value, str | int | float | Estimate):
        return value
    return value.plain
