"""What a metric is: one column of rows and trials, how it is read, and how it is compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from dpbench.analysis.estimate import Estimate, geometric_mean, mean, single_value
from dpbench.records.trial import TrialRecord
from dpbench.specs import TrialSpec

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
"""Style in which a value is printed; `report.numbers` has the writer of each."""
Scale = Literal["", "linear", "log", "loss", "largest", "smallest"]
"""How the values of repetitions become the value of a row: the arithmetic or the geometric mean
with a t interval; for losses, which repetitions of one seed share, without an interval; the largest
or smallest value; "" where `rows` computes it, or rows do not have it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One key of rows, of trials, or of both, and the table column that shows it."""

    key: str
    kind: ValueKind = "number"
    meaning: str = ""
    """Meaning in one sentence."""
    unit: str = ""
    """Unit; "items" stands for the architecture's item: images, tokens."""
    has_interval: bool = False
    """True for estimates whose interval is in `key`_low and `key`_high of a frame."""
    header: str = ""
    """Column header; empty if no table has it; "{Item}" is replaced by the architecture's item."""
    style: Style = "plain"
    shown: bool = False
    """Whether a table has the column without --columns, if a row has a value."""
    trial: Callable[[TrialRecord], PlainValue] | None = None
    """Reads it from one trial; None if trials do not have it."""
    setting: Callable[[TrialSpec], PlainValue] | None = None
    """Reads it from the specification of a trial or of a row, unless the row is a published one."""
    row: Callable[[Any], Value] | None = None
    """Reads it from a row, where that is not its value under `key`."""
    in_rows: bool = True
    scale: Scale = ""
    better: Literal["", "higher", "lower"] = ""
    """Which direction is better; "" if `compare` and `check` do not compare it."""
    is_speed: bool = True
    """Whether better means faster."""
    follows_throughput: bool = False
    """True for a multiple of the throughput: too noisy to print where that is."""

    @property
    def higher_is_better(self) -> bool:
        return self.better == "higher"

    @property
    def is_text(self) -> bool:
        """Whether its column is aligned left."""
        return self.kind in ("text", "boolean")

    @property
    def in_trials(self) -> bool:
        return self.trial is not None or self.setting is not None

    def of_trial(self, record: TrialRecord) -> PlainValue:
        """Read its value in one trial; None if that does not have it."""
        if self.setting is not None:
            return self.setting(record.trial)
        return None if self.trial is None else self.trial(record)

    def of_row(self, row: Any) -> Value:
        """Read its value in a row; None if that does not have it."""
        if self.row is not None:
            return self.row(row)
        if self.setting is not None and row.trial is not None:
            return self.setting(row.trial)
        value: Value = row[self.key]
        return value

    def average(self, values: Sequence[float], unit: str) -> Estimate:
        """The mean over runs; on logarithms for positive values that are compared by ratio."""
        if self.scale == "loss":
            return single_value(fmean(values), unit)
        if self.scale == "linear" or min(values) <= 0:
            return mean(values, unit=unit)
        return geometric_mean(values, unit=unit)

    def combined(self, usable: Sequence[TrialRecord]) -> Value:
        """Combine the usable repetitions of a configuration, by `scale`, to the value of its row;
        None if none has it."""
        values: list[Any] = [value for r in usable if (value := self.of_trial(r)) is not None]
        if not values:
            return None
        if self.scale in ("largest", "smallest"):
            end: PlainValue = max(values) if self.scale == "largest" else min(values)
            return end
        return self.average(values, self.unit.replace("items", usable[0].item))
