"""What a metric is: its key and meaning, how it is read, and how tables show it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from dpbench.analysis.estimate import Estimate
from dpbench.records.trial import TrialRecord
from dpbench.specs import TrialSpec

PlainValue = str | int | float | bool | None
Value = PlainValue | Estimate
ValueType = Literal["text", "integer", "number", "boolean"]
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
ITEMS = "items"
"""Stands in units for what rows count: images, tokens; also where they do not all count the same.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One key of rows, of trials, or of both, and the table column that shows it.

    A setting is read `of_configuration`. Of all others trials have the value `of_trial`, and rows
    have what `combine` makes of the values of their repetitions, or the value `of_row`.
    """

    key: str
    value_type: ValueType = "number"
    meaning: str = ""
    """Meaning in one sentence."""
    of_configuration: Callable[[TrialSpec], PlainValue] | None = None
    of_trial: Callable[[TrialRecord], PlainValue] | None = None
    """Value in a trial; None if the trial lacks what it needs."""
    combine: Callable[[list[Any], str], Value] | None = None
    """The value in a row, from those of its usable repetitions, of which there is one or more, and
    the unit."""
    of_row: Callable[[Any], Value] | None = None
    """Value in a `Row`, or of a rank."""
    unit: str = ""
    """Unit; "items" stands for the architecture's item: images, tokens."""
    has_interval: bool = False
    """True for estimates whose interval is in `key`_low and `key`_high of a frame."""
    header: str = ""
    """Column header; empty if no table has it; "Items" stands for the architecture's item."""
    style: Style = "plain"
    words: Callable[[Any], str] | None = None
    """What tables write in a `Row` that has a value, instead of the value in its style;
    None if they write the value."""
    interval_of: str = ""
    """Key of the metric that has the same relative interval; tables with both write it once."""
    by_default: bool = False
    """Whether a table has the column without --columns, if a row has a value."""
    better: Literal["", "higher", "lower"] = ""
    """Which direction is better; "" if `compare` and `check` do not compare it."""
    is_speed: bool = True
    """Whether better means faster."""
    follows_throughput: bool = False
    """True for a multiple of the throughput: too noisy to print where that is."""

    def in_trial(self, record: TrialRecord) -> PlainValue:
        """The value in a trial; None if it has none."""
        if self.of_configuration is not None:
            return self.of_configuration(record.trial)
        return None if self.of_trial is None else self.of_trial(record)

    def in_row(self, row: Any) -> Value:
        """The value in a `Row`; None if it has none."""
        if self.of_row is not None:
            return self.of_row(row)
        if self.of_configuration is not None:
            return row.configuration and self.of_configuration(row.configuration)
        if self.combine is None:
            return None
        values = [value for value in map(self.in_trial, row.records) if value is not None]
        return self.combine(values, self.counting([row.item]).unit) if values else None

    def counting(self, items: Iterable[str]) -> Metric:
        """The metric where these items are counted: "images/s" in its unit and "Images/s" in its
        header; "items/s" if there are several."""
        counted = {*items}
        item = counted.pop() if len(counted) == 1 else ITEMS
        header = self.header.replace(ITEMS.capitalize(), item[:1].upper() + item[1:])
        return replace(self, unit=self.unit.replace(ITEMS, item), header=header)
