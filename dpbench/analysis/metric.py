"""Metrics: their key and meaning, how they are read, and how tables show them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Self

from dpbench.analysis.estimate import Estimate

if TYPE_CHECKING:
    from dpbench.analysis.rows import Row
    from dpbench.records.trial import TrialRecord
    from dpbench.specs import Configuration

PlainValue = str | int | float | bool | None
Value = PlainValue | Estimate
ValueType = Literal["text", "integer", "number", "boolean"]
VALUE_TYPES: dict[type, ValueType] = {str: "text", int: "integer", float: "number"}
Style = Literal[
    "plain",
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """A value of trials, of rows of any kind, or of both, and the table column that shows it.

    It has one reader for trials, `of_configuration` or `of_trial`, and one for rows: the same
    `of_configuration`, or `of_row`, or `combine`.
    """

    key: str
    value_type: ValueType = "number"
    meaning: str = ""
    """Meaning in one sentence."""
    has_interval: bool = False
    """True for estimates whose interval is in `key`_low and `key`_high of a frame."""
    header: str = ""
    """Column header; empty if no table has it; "Items" stands for the architecture's item."""
    style: Style = "plain"
    of_configuration: Callable[[Configuration], PlainValue] | None = None
    """Reads a setting, which trials and rows have in their configuration."""
    of_trial: Callable[[TrialRecord], PlainValue] | None = None
    """Reads it from a trial."""
    of_row: Callable[[Row], Value] | None = None
    """Reads it from a row of a configuration, unless a published table states it."""
    combine: Callable[[list[Any], str], Value] | None = None
    """Makes the value of a row from those of its usable repetitions, one or more, and the unit."""
    unit: str = ""
    """Unit of its value in a trial; "items" stands for the architecture's item: images, tokens."""
    words: Callable[[Row], str] | None = None
    """What tables write in a row that has a value, instead of the value in its style; None if they
    write the value."""
    by_default: bool = False
    """Whether a table has the column without --columns, if a row has a value."""
    better: Literal["", "higher", "lower"] = ""
    """Which direction is better; "" if `compare` and `check` do not compare it."""
    is_speed: bool = True
    """Whether better means faster."""
    matters: Callable[[Sequence[Row]], bool] = lambda rows: True
    """Whether it says anything in a table of these rows, which leaves it out otherwise."""
    follows_throughput: bool = False
    """True for a multiple of the throughput, which is too noisy where the throughput is."""
    interval_of: str = ""
    """Key of a metric with the same relative interval; beside that it is written without one."""
    why_bare: str = "single values (n = 1), which have no interval"
    """Why some of its values have no interval."""

    def in_trial(self, record: TrialRecord) -> PlainValue:
        """The value in a trial; None if it has none."""
        if self.of_configuration is not None:
            return self.of_configuration(record.configuration)
        return None if self.of_trial is None else self.of_trial(record)

    def in_row(self, row: Row) -> Value:
        """The value in a row; None if it has none."""
        if self.of_row is not None:
            return self.of_row(row)
        if self.of_configuration is not None:
            return self.of_configuration(row.configuration) if row.configuration else None
        values = [value for value in map(self.in_trial, row.records) if value is not None]
        unit = self.unit.replace(ITEM_PLACEHOLDER, row.item)
        return self.combine(values, unit) if values and self.combine is not None else None

    def counting(self, items: Iterable[str]) -> Self:
        """The metric where these items are counted: "images/s" in its unit and "Images/s" in its
        header; "items/s" if there are several."""
        counted = {*items}
        item = counted.pop() if len(counted) == 1 else ITEM_PLACEHOLDER
        header = self.header.replace(ITEM_PLACEHOLDER.capitalize(), item[:1].upper() + item[1:])
        return replace(self, unit=self.unit.replace(ITEM_PLACEHOLDER, item), header=header)
