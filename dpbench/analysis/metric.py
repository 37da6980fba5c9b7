"""What a metric is: its key and meaning, how it is read, and how tables show it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from dpbench.analysis.estimate import Estimate
from dpbench.records.trial import TrialRecord

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
    "significant",
    "memory",
    "gigabytes",
    "gigabytes alone",
    "grouped",
    "error",
]
"""Style in which a value is printed; `report.formatting` has the writer of each."""


@dataclass(frozen=True, slots=True)
class Reader:
    """How a metric is read from records; None for what trials, or rows, do not have."""

    of_trial: Callable[[TrialRecord], PlainValue] | None = None
    """Value in a trial; None if the trial lacks what it needs."""
    of_row: Callable[[Any], Value] | None = None
    """Value in a `Row`, or of a rank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One key of rows, of trials, or of both, and the table column that shows it."""

    key: str
    kind: ValueKind = "number"
    meaning: str = ""
    """Meaning in one sentence."""
    reader: Reader = Reader()
    stated: bool = False
    """Whether it is in the rows of published tables alone, which state it."""
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
