"""How a field's value is printed: the writer of each style."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from dpbench import units
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.fields import NOISY, Plain, ReadField, Style, Value, plain
from dpbench.messages import one_line
from dpbench.report.numbers import (
    gigabytes,
    gigabytes_alone,
    memory,
    percentage,
    plus_minus,
    significant,
    time_text,
)
from dpbench.report.table import MISSING, SortValue, Table, TableCell, TableColumn, TableRow

S = TypeVar("S")

ESTIMATES: Mapping[Style, Callable[[Estimate], str]] = {
    "rate": lambda e: plus_minus(e, plain_decimals=1),
    "ratio": lambda e: plus_minus(e, two_after_one=False),
    "percent": percentage,
    "share": lambda e: percentage(e) if e.interval is None else f"{100 * e.value:.0f} %",
    "time": time_text,
    "duration": lambda e: units.seconds(e.value),
    "significant": significant,
    "gigabytes": gigabytes,
    "gigabytes alone": gigabytes_alone,
}
"""Styles of values with an interval."""
NUMBERS: Mapping[Style, Callable[[float], str]] = {
    "duration": units.seconds,
    "time": units.seconds,
    "memory": memory,
    "traffic": units.bytes_binary,
    "fraction": lambda value: f"{value:.3f}",
    "grouped": lambda value: f"{value:,}",
    "error": lambda value: f"{value:.0e}" if value else "0",
}
"""Styles of plain numbers."""
SPEEDS: tuple[Style, ...] = ("rate", "ratio", "percent", "share")
"""Styles of values that are compared by ratio, of which some are too noisy to print."""


def table_of(fields: Sequence[ReadField[S]], sources: Iterable[S]) -> Table:
    """A row for each source, a column for each field; cells are sorted by their plain values."""
    return Table(
        columns=tuple(
            TableColumn(
                key=field.key,
                header=field.header,
                meaning=field.meaning,
                text=field.is_words,
            )
            for field in fields
        ),
        rows=tuple(
            TableRow(
                cells=tuple(
                    TableCell(
                        text=one_line(cell(field, source)),
                        sort=sort_value(plain(field.read(source))),
                    )
                    for field in fields
                )
            )
            for source in sources
        ),
    )


def sort_value(value: Plain) -> SortValue:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return float(value)
    return None if value is None else one_line(value)


def cell(field: ReadField[S], source: S) -> str:
    """The text of the field in a table."""
    return write(field.read(source), field.style)


def write(value: Value, style: Style = "plain") -> str:
    """The text of a table's cell."""
    if isinstance(value, Estimate):
        return NOISY if style in SPEEDS and value.is_too_noisy else ESTIMATES[style](value)
    if value is None:
        return "not checked" if style == "check" else MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if isinstance(value, int | float):
        if style in NUMBERS:
            return NUMBERS[style](value)
        return str(value) if isinstance(value, int) else f"{value:g}"
    return value.words or write(value.plain, style)
