"""The declaration of a field: key, meaning, type, style; how it is read and averaged over runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any, Generic, Literal, Protocol, TypeVar

from dpbench.analysis.configuration import (
    ConfigurationSummary,
    by_configuration,
    usable_repetitions,
)
from dpbench.analysis.estimate import Estimate, LogMean, mean
from dpbench.analysis.losses.loss_curve import loss_mean
from dpbench.records.trial import TrialRecord
from dpbench.specs import TrialSpec

Plain = str | int | float | bool | None
FieldKind = Literal["text", "integer", "number", "boolean"]
Style = Literal[
    "plain",
    "rate",
    "ratio",
    "percent",
    "time",
    "duration",
    "significant",
    "whole",
    "two decimals",
    "memory",
    "traffic",
    "giga",
    "gigabytes",
    "gigabytes alone",
    "percent alone",
    "grouped",
    "error",
    "check",
]
"""Style in which a value is printed; `report.values` has the writer of each."""
Shown = Literal["always", "if measured", "on request"]
"""When a table has the column without --columns. "if measured": a table without any value of it
does not mention the column."""


class Composite(Protocol):
    """A value that tables print with more words than programs read."""

    @property
    def plain(self) -> Plain | Estimate: ...


Value = Plain | Estimate | Composite
S = TypeVar("S")
End = Literal["low", "high"]
ENDS: tuple[tuple[End, str], ...] = (("low", "Lower"), ("high", "Upper"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """One key in the rows of a level, and the table column that shows it."""

    key: str
    kind: FieldKind = "number"
    meaning: str
    """Meaning in one sentence."""
    unit: str = ""
    required: bool = False
    """True if it is never None."""
    choices: tuple[str, ...] = ()
    """All possible values of a text, if they are known."""
    finite: bool = True
    """False if infinity and NaN are possible values, as in a loss that diverged."""
    ends: bool = False
    """True for estimates whose interval is in `key`_low and `key`_high."""
    header: str = ""
    """Column header; empty if no table has it; "{Item}" is replaced by the architecture's item:
    Images, Tokens."""
    wrapped: str = ""
    """The header on two lines, for tables that would be too wide."""
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
    key: str, meaning: str, read: Callable[[S], Value] | None = None, **more: Any
) -> ReadField[S]:
    return ReadField(key=key, kind="text", meaning=meaning, read=read or attrgetter(key), **more)


def integer(
    key: str, meaning: str, read: Callable[[S], Value] | None = None, **more: Any
) -> ReadField[S]:
    return ReadField(key=key, kind="integer", meaning=meaning, read=read or attrgetter(key), **more)


def number(
    key: str, meaning: str, read: Callable[[S], Value] | None = None, **more: Any
) -> ReadField[S]:
    return ReadField(key=key, kind="number", meaning=meaning, read=read or attrgetter(key), **more)


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepField(Field):
    """A field of configurations, of single trials, or of both, with the same meaning."""

    row: Callable[[ConfigurationSummary], Value] | None = None
    """Reads it from a configuration."""
    run: Callable[[TrialRecord], Plain] | None = None
    """Reads it from one trial."""
    over: Callable[[Sequence[TrialRecord]], Value] | None = None
    """Estimates it over usable repetitions; `summarize` stores that in the attribute `key`."""
    run_required: bool = False
    """True if it is never None in a trial."""
    in_trial_rows: bool = True
    """False if `run` is only for comparisons."""


def stored(key: str) -> Callable[[ConfigurationSummary], Value]:
    """A reader of the summary's attribute of that name."""
    return attrgetter(key)


def described(field: Field, **changes: Any) -> dict[str, Any]:
    """The attributes of `field` that every field has, for a field that shares its meaning."""
    return {one.name: getattr(field, one.name) for one in fields(Field)} | changes


def of_configuration(field: SweepField) -> ReadField[ConfigurationSummary] | None:
    """The field of rows of configurations; None if they do not have it."""
    return None if field.row is None else ReadField(**described(field), read=field.row)


def of_trial(field: SweepField) -> ReadField[TrialRecord] | None:
    """The field of rows of trials; None if they do not have it."""
    if field.run is None or not field.in_trial_rows:
        return None
    return ReadField(
        **described(field, required=field.run_required, ends=False, header=""), read=field.run
    )


def plain(value: Value) -> Plain:
    """The value as programs read it: an estimate without its interval."""
    value = _simple(value)
    return value.value if isinstance(value, Estimate) else value


def flat(declared: Iterable[ReadField[S]]) -> Iterator[ReadField[S]]:
    """The same fields, with one more for each end of an interval."""
    for field in declared:
        yield ReadField(**described(field, ends=False), read=field.read)
        if field.ends:
            for end, name in ENDS:
                yield ReadField(
                    key=f"{field.key}_{end}",
                    meaning=f"{name} end of the 95 % interval of {field.key}.",
                    unit=field.unit,
                    read=_end(field.read, end),
                )


def read_row(declared: Sequence[ReadField[S]], source: S) -> dict[str, Plain]:
    """One row, with the keys in the order of the fields, which are `flat`."""
    return {field.key: plain(field.read(source)) for field in declared}


def in_key_order(declared: Iterable[ReadField[S]], order: str) -> tuple[ReadField[S], ...]:
    """Sorts fields by the keys that `order` lists; those that it does not know come last."""
    places = {key: place for place, key in enumerate(order.split())}
    return tuple(sorted(declared, key=lambda field: places.get(field.key, len(places))))


def _end(read: Callable[[S], Value], name: End) -> Callable[[S], Plain]:
    def read_end(source: S) -> Plain:
        value = read(source)
        estimate = _simple(value)
        if not isinstance(estimate, Estimate):
            bound: float | None = getattr(value, "at_least", None) if name == "low" else None
            return bound
        return estimate.low if name == "low" else estimate.high

    return read_end


def _simple(value: Value) -> Plain | Estimate:
    if value is None or isinstance(value, str | int | float | Estimate):
        return value
    return value.plain


Reading = Callable[[TrialRecord], float | None]
Average = Callable[[Sequence[float], str], Estimate]
"""Combines the values of runs, given their unit."""


def geometric(values: Sequence[float], unit: str) -> Estimate:
    """Mean of values that are compared by ratio, on logarithms if all values are positive."""
    if min(values) <= 0:
        return mean(values, unit=unit)
    return LogMean.of_runs(values).estimate(unit)


def arithmetic(values: Sequence[float], unit: str) -> Estimate:
    """Mean of values that are compared by difference."""
    return mean(values, unit=unit)


def mean_of_losses(values: Sequence[float], unit: str) -> Estimate:
    """Mean of values that depend on one loss curve, which repetitions of one seed share."""
    return loss_mean(values, unit=unit)


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric(SweepField):
    """A field that can be compared: one number per run, None if not measured.

    Positive ones are compared by their ratio. Those that may be zero or negative have a
    `reference`: their difference is a part of the baseline's mean reference.
    """

    run: Reading
    """Reads it from one run; if the metric is `relative`, use `reader`."""
    higher_is_better: bool
    reference: Reading | None = None
    reference_words: str = ""
    relative: bool = False
    """True if `run` counts per replica against group size 1 of the same repetition."""
    is_speed: bool = True
    """Whether better means faster."""
    average: Average = geometric
    """The mean over the runs of one side."""
    of_losses: bool = False
    """Whether runs with the same seed are one sample of it."""
    counts_steps: bool = False
    """Whether it depends on the number of steps."""

    @property
    def additive(self) -> bool:
        return self.reference is not None

    def reader(self, records: Sequence[TrialRecord]) -> Reading:
        """The metric as a function of one record out of all those of a sweep."""
        return _against_one(self.run, records) if self.relative else self.run


def _against_one(read_run: Reading, records: Sequence[TrialRecord]) -> Reading:
    ones = {
        _run(record.trial): record
        for spec, group in by_configuration(records).items()
        if spec.group_size == 1
        for record in usable_repetitions(group)
    }

    def read(record: TrialRecord) -> float | None:
        size = record.trial.group_size
        one = ones.get(_run(record.trial))
        if size == 1 or one is None:
            return None
        mine, alone = read_run(record), read_run(one)
        return None if mine is None or alone is None else mine / alone / size

    return read


def _run(trial: TrialSpec) -> TrialSpec:
    """The parts of a run's specification shared with the run of its first replica alone in the same
    pass."""
    return replace(trial.of_one_replica, trace_steps=0)
