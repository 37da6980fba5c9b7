"""Metrics: their key and meaning, how they are read, and how tables show them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Self

from dpbench.analysis.estimate import Estimate

if TYPE_CHECKING:
    from dpbench.analysis.rows import Row
    from dpbench.records.trial import TrialRecord

PlainValue = str | int | float | bool | None
Value = PlainValue | Estimate
ValueType = Literal["text", "integer", "number", "boolean"]
VALUE_TYPES: dict[type, ValueType] = {str: "text", int: "integer", float: "number"}
Style = Literal[
    "plain",
    "as stated",
    "rate",
    "ratio",
    "percent",
    "share",
    "fraction",
    "time",
    "significant",
    "memory",
    "gigabytes",
    "gigabytes alone",
    "grouped",
    "error",
]
"""Style in which a value is printed; `report.formatting` has the writer of each."""
ITEM_PLACEHOLDER = "items"
"""Stands in units for images, tokens or whatever a row counts; it stays where rows differ in it."""


def value_type_of(hint: Any) -> ValueType | None:
    """The type of the values of a field with this annotation; None if it has no single ones."""
    found = (value_type for one, value_type in VALUE_TYPES.items() if hint in (one, one | None))
    return next(found, None)


def missing(_: object) -> None:
    """Reads a value that none of them has."""


@dataclass(frozen=True, slots=True)
class Reader:
    """A value of trials, ranks, rows or collectives, and how it is read from one of them."""

    key: str
    read: Callable[[Any], Value]
    """Returns None where there is no such value."""
    value_type: ValueType = "number"
    has_interval: bool = False
    """True for estimates, whose interval is in `key`_low and `key`_high of a frame."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric(Reader):
    """A value of rows or collectives, and the table column that shows it."""

    of_trial: Callable[[TrialRecord], PlainValue] = missing
    """Reads it from a trial; `missing` if only rows have it."""
    meaning: str = ""
    """Meaning in one sentence."""
    unit: str = ""
    """Unit of its value in a trial; "items" stands for the architecture's item: images, tokens."""
    header: str = ""
    """Column header; empty if no table has it; "Items" stands for the architecture's item."""
    style: Style = "plain"
    words: Callable[[Row], str] | None = None
    """What tables write in a row that has a value, instead of the value in its style; None if they
    write the value."""
    by_default: bool = False
    """Whether a table has the column without --columns, if a row has a value."""
    better: Literal["", "higher", "lower"] = ""
    """Which direction is better; "" if `compare` and `check` do not compare it."""
    is_speed: bool = True
    """Whether better means faster."""

    def counting(self, items: Iterable[str]) -> Self:
        """The metric where these items are counted: "images/s" in its unit and "Images/s" in its
        header; "items/s" if there are several."""
        counted = {*items}
        item = counted.pop() if len(counted) == 1 else ITEM_PLACEHOLDER
        header = self.header.replace(ITEM_PLACEHOLDER.capitalize(), item[:1].upper() + item[1:])
        return replace(self, unit=self.unit.replace(ITEM_PLACEHOLDER, item), header=header)
