"""What a metric is: its key and meaning, how tables show it, and the one source of its values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dpbench.analysis.estimate import Estimate
from dpbench.analysis.repetitions import Repetitions
from dpbench.records.trial import TrialRecord
from dpbench.specs import Configuration

PlainValue = str | int | float | bool | None
Value = PlainValue | Estimate
ValueKind = Literal["text", "integer", "number", "boolean"]
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
    "gigabytes",
    "gigabytes alone",
    "grouped",
    "error",
]
"""Style in which a value is printed; `report.formatting` has the writer of each."""


@dataclass(frozen=True, slots=True)
class Fact:
    """Read as it is from what a line of a table is about: a row, a rank, a collective."""

    of_row: Callable[[Any], Value]
    of_trial: Callable[[TrialRecord], PlainValue] | None = None
    """Reads it from a trial; None if trials do not have it."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of the configuration, the same in a row and in its trials."""

    read: Callable[[Configuration], PlainValue]


@dataclass(frozen=True, slots=True)
class Reading:
    """A reading of one trial; those of the repetitions are combined to the value of a row."""

    of_trial: Callable[[TrialRecord], PlainValue]
    """Reads it; None if the trial lacks what it needs."""
    combine: Callable[[Sequence[Any], str], Value] | None = None
    """The value of a row, from those of its usable repetitions and the unit; None if rows do not
    have it."""


@dataclass(frozen=True, slots=True)
class Derived:
    """A function of all usable repetitions of a row, and of what they are compared with."""

    of_repetitions: Callable[[Repetitions], Value]
    of_trial: Callable[[TrialRecord], PlainValue] | None = None
    """Reads the like from one trial; None if trials do not have it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One key of rows, of trials, or of both, and the table column that shows it."""

    key: str
    kind: ValueKind = "number"
    meaning: str = ""
    """Meaning in one sentence."""
    source: Fact | Setting | Reading | Derived
    """Where its values come from. Published rows state the values of readings and of what is
    derived, and of the settings their global batch alone."""
    unit: str = ""
    """Unit; "items" stands for the architecture's item: images, tokens."""
    has_interval: bool = False
    """True for estimates whose interval is in `key`_low and `key`_high of a frame."""
    header: str = ""
    """Column header; empty if no table has it; "{Item}" is replaced by the architecture's item."""
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

    @property
    def in_rows(self) -> bool:
        """Whether rows have it."""
        return not isinstance(self.source, Reading) or self.source.combine is not None

    @property
    def in_trials(self) -> bool:
        """Whether trials have it."""
        return isinstance(self.source, Setting) or self.source.of_trial is not None

    def of_trial(self, record: TrialRecord) -> PlainValue:
        """Read its value in one trial; None if that does not have it."""
        if isinstance(self.source, Setting):
            return self.source.read(record.trial)
        return None if self.source.of_trial is None else self.source.of_trial(record)

    def of_repetitions(self, repetitions: Repetitions) -> Value:
        """Compute its value in the row of these repetitions, which `Row.values` stores; None if it
        has none, or is no reading and not derived."""
        if isinstance(self.source, Derived):
            return self.source.of_repetitions(repetitions)
        if not isinstance(self.source, Reading) or self.source.combine is None:
            return None
        read = map(self.source.of_trial, repetitions.records)
        values = [value for value in read if value is not None]
        unit = self.unit.replace("items", repetitions.records[0].item)
        return self.source.combine(values, unit) if values else None

    def of_row(self, row: Any) -> Value:
        """Read its value in a row; None if that does not have it."""
        if isinstance(self.source, Fact):
            return self.source.of_row(row)
        if isinstance(self.source, Setting) and row.configuration is not None:
            return self.source.read(row.configuration)
        value: Value = row.values.get(self.key)
        return value
