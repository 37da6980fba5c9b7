"""`dpbench compare`: two sweeps, or two selections of one, configuration by configuration."""

from __future__ import annotations

import sys
from typing import Annotated, Any

from dpbench.messages import print_result
from dpbench.options.bridge import Layer, command, read, read_value
from dpbench.options.compare import CompareOptions
from dpbench.options.types import Choice


@command(CompareOptions)
def compare(typed: dict[str, Any]) -> None:
    """Compare two sweeps, or parts of one: which is faster, and by how much.

    dpbench compare results/before results/after

    dpbench compare results/x:implementation=torch-ddp results/x:implementation=ddp

    Exit status: 0 compared, whatever the result (dpbench check is the gate); 2 usage; 5 the two
    cannot be compared.
    """
    options = read(CompareOptions, Layer("", typed))
    from dpbench.analysis.metrics import METRICS

    for name in options.metric:
        read_value("--metric", Annotated[str, Choice(tuple(METRICS))], name)
    text, aside = _compared(options)
    print_result(text)
    for note in aside:
        print(note, file=sys.stderr)


def _compared(options: CompareOptions) -> tuple[str, list[str]]:
    """The text of all metrics, and what has no room in it."""
    from dpbench.analysis.comparisons.comparability import check_environments
    from dpbench.analysis.comparisons.comparison import compare as compare_metric
    from dpbench.analysis.comparisons.matching import NotComparable, match
    from dpbench.analysis.metrics import METRICS
    from dpbench.report.comparison import render, to_csv, to_json
    from dpbench.run.results import latest_folders, load_sides

    format = "json" if options.as_json else options.format
    baseline, candidate = options.baseline, options.candidate
    if baseline is None or candidate is None:
        baseline, candidate = map(str, latest_folders("compare", 2))
    matched = match(*load_sides(baseline, candidate))
    notes = [*check_environments(matched, force=options.force)]
    within = options.within
    found = {name: compare_metric(matched, METRICS[name], within=within) for name in options.metric}
    for name, rows in found.items():
        if not rows:
            raise NotComparable(f"{name} was measured on neither side; take another --metric")
    everything = [row for rows in found.values() for row in rows]
    if format == "json":
        return to_json(everything, matched, notes), []
    if format == "csv":
        return to_csv(everything), notes
    tables = []
    for name, rows in found.items():
        measured = [row for row in rows if any(row.repetitions)] or rows
        metric = METRICS[name]
        table = render(measured, matched, metric, within=within, format=format, notes=notes)
        tables.append(table)
    aside = [note for table in tables for note in table.notes_aside]
    return "\n".join(table.text for table in tables), aside
