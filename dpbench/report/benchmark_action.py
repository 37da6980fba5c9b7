"""A check as JSON for github-action-benchmark, which draws the history of a value.

Its tool "customBiggerIsBetter" or "customSmallerIsBetter" reads a list of name, unit, value,
range and extra; one file has one direction.
"""

from __future__ import annotations

from collections.abc import Collection

from dpbench.analysis.fields.levels import METRICS
from dpbench.analysis.verdict import RowVerdict, Verdict
from dpbench.errors import UsageError
from dpbench.report.answer import json_text
from dpbench.report.numbers import decimals
from dpbench.report.verdict_table import labels, sentence


def tool(metrics: Collection[str]) -> str:
    """The name of the tool that reads the file; raises UsageError for two directions."""
    bigger = [metric for metric in metrics if METRICS[metric].higher_is_better]
    smaller = [metric for metric in metrics if not METRICS[metric].higher_is_better]
    if bigger and smaller:
        raise UsageError(
            f"--benchmark-action: {bigger[0]} is better when larger and {smaller[0]} when smaller, "
            "but the action reads one direction a file; check the stored results once for each"
        )
    return "customBiggerIsBetter" if bigger else "customSmallerIsBetter"


def benchmark_action(verdict: Verdict) -> str:
    """An entry per configuration and metric that the candidate has a value of."""
    named = zip(labels(verdict.rows), verdict.rows, strict=True)
    entries = [entry for name, row in named if (entry := _entry(name, row))]
    return json_text(entries)


def _entry(name: str, row: RowVerdict) -> dict[str, str | float] | None:
    measured = row.comparison.candidate
    if measured is None:
        return None
    entry: dict[str, str | float] = {
        "name": f"{row.comparison.metric}, {name}",
        "unit": measured.unit,
        "value": measured.value,
        "extra": (
            f"{row.outcome} against {row.comparison.baseline_label}: {sentence(row)}, "
            f"n = {row.comparison.repetitions[1]}"
        ),
    }
    if measured.half_width is not None:
        places = decimals(measured.half_width, measured.value)
        entry["range"] = f"± {measured.half_width:.{places}f}"
    return entry
