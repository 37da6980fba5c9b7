"""How a field's value is printed: the writer of each style."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dpbench import units
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.metric import Metric, Style, Value
from dpbench.analysis.row import Row
from dpbench.messages import one_line
from dpbench.report.numbers import (
    NOISY,
    gigabytes,
    gigabytes_alone,
    percentage,
    plus_minus,
    significant,
    time_text,
)
from dpbench.report.table import MISSING, SortValue, TableColumn, column
from dpbench.specs.shares import host_counts

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
    "memory": units.bytes_binary,
    "traffic": units.bytes_binary,
    "fraction": lambda value: f"{value:.3f}",
    "grouped": lambda value: f"{value:,}",
    "error": lambda value: f"{value:.0e}" if value else "0",
}
"""Styles of plain numbers."""
SPEEDS: tuple[Style, ...] = ("rate", "ratio", "percent", "share")
"""Styles of values that are compared by ratio, of which some are too noisy to print."""


def _group_size(row: Row) -> str:
    """Writes the size with the replicas of each host, if there are several: "3 (2+1)"."""
    return f"{row.group_size} ({host_counts(row.nodes)})" if row.nodes else str(row.group_size)


def _learning_rate(row: Row) -> str:
    """Writes the rate with the rule that scaled it: "0.02 (linear)"."""
    assert row.trial is not None, "published rows have no learning rate"
    rule = row.trial.workload.learning_rate_rule
    rate = f"{row.trial.learning_rate:g}"
    return rate if rule in (None, "none") else f"{rate} ({rule})"


WORDS: Mapping[str, Callable[[Row], str]] = {
    "implementation": lambda row: row.implementation_label,
    "group_size": _group_size,
    "learning_rate": _learning_rate,
    "status": lambda row: row.status.words,
}
"""What tables write for these values of a row."""


def metric_column(metric: Metric, sources: Sequence[Any], cells: Iterable[str]) -> TableColumn:
    """The column of a metric with these texts, sorted by its plain values."""
    return column(
        metric.header,
        cells,
        key=metric.key,
        meaning=metric.meaning,
        is_text=metric.is_text,
        sort=tuple(sort_value(metric.of_row(source)) for source in sources),
    )


def sort_value(value: Value) -> SortValue:
    if isinstance(value, Estimate):
        return value.value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return float(value)
    return None if value is None else one_line(value)


def cell(metric: Metric, source: Any) -> str:
    """The text of the metric in a table."""
    value = metric.of_row(source)
    if isinstance(source, Row) and value is not None:
        if metric.key in WORDS:
            return WORDS[metric.key](source)
        if metric.follows_throughput and source.throughput and source.throughput.is_too_noisy:
            return NOISY
    return write(value, metric.style)


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
    if style in NUMBERS:
        return NUMBERS[style](value)
    return str(value) if isinstance(value, int) else f"{value:g}"
