"""`dpbench compare`: two sweeps, or two selections of one, configuration by configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpbench.cli.options import JsonFormat, format_name
from dpbench.errors import UsageError
from dpbench.files import write_text
from dpbench.options.bridge import read_value
from dpbench.options.types import Choice, CommaList, Percent


def compare(
    baseline: Annotated[
        str | None,
        typer.Argument(
            metavar="A",
            show_default="the latest but one in results/",
            help="Baseline: a results folder, or a part of one as DIR:key=value,key=value.",
        ),
    ] = None,
    candidate: Annotated[
        str | None,
        typer.Argument(
            metavar="B",
            show_default="the latest in results/",
            help="Candidate, written in the same way.",
        ),
    ] = None,
    metric: Annotated[
        str,
        typer.Option(
            "--metric",
            metavar="A,B,C",
            help="Metrics, e.g. images_per_second,efficiency,peak_memory_bytes.",
        ),
    ] = "images_per_second",
    within: Annotated[
        str, typer.Option("--within", metavar="X%", help="Difference that counts as the same.")
    ] = "3%",
    force: Annotated[
        bool, typer.Option("--force", help="Compare although environments differ.")
    ] = False,
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="NAME",
            help="Format: text, markdown, latex, html, csv or json.",
            show_default="text",
        ),
    ] = None,
    json: JsonFormat = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="Write to this file instead of stdout."),
    ] = None,
) -> None:
    """Compare two sweeps, or parts of one: which is faster, by how much.

    dpbench compare results/before results/after

    dpbench compare results/x:implementation=torch-ddp results/x:implementation=ddp

    Exit status: 0 compared, whatever came out (dpbench check is the gate); 2 usage; 5 the two
    cannot be compared.
    """
    format = format_name(format, json=json)
    limit = read_value("--within", Percent, within)
    from dpbench.analysis.metrics import METRICS

    notes: list[str] = []
    names = read_value("--metric", CommaList[Annotated[str, Choice(tuple(METRICS))]], metric)
    text, aside = _compared(_sides(baseline, candidate), names, limit, format, notes, force=force)
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_text(output, text)
    for note in aside:
        typer.echo(note, err=True)


def _sides(baseline: str | None, candidate: str | None) -> tuple[str, str]:
    """The two sides; without both, the latest two results."""
    if candidate is not None and baseline is not None:
        return baseline, candidate
    if baseline is not None:
        raise UsageError(f"compare {baseline}: name the candidate, too: dpbench compare A B")
    from dpbench.run.results import latest_folders

    before, latest = latest_folders("compare", 2)
    return str(before), str(latest)


def _compared(
    texts: tuple[str, str],
    names: tuple[str, ...],
    within: float,
    format: str | None,
    notes: list[str],
    *,
    force: bool,
) -> tuple[str, list[str]]:
    """The text of all metrics, and what has no room in it."""
    from dpbench.analysis.comparisons.comparability import check_environments
    from dpbench.analysis.comparisons.comparison import compare as compare_metric
    from dpbench.analysis.comparisons.matching import NotComparable, match
    from dpbench.analysis.metrics import METRICS
    from dpbench.report.comparison import render, to_csv, to_json
    from dpbench.report.terminal import DEFAULT, check_format
    from dpbench.run.results import load_sides

    check_format(format or DEFAULT)
    matched = match(*load_sides(*texts))
    notes += check_environments(matched, force=force)
    found = {name: compare_metric(matched, METRICS[name], within=within) for name in names}
    for name, rows in found.items():
        if not rows:
            raise NotComparable(f"{name} was measured on neither side; take another --metric")
    everything = [row for rows in found.values() for row in rows]
    if format == "json":
        return to_json(everything, matched, notes), []
    if format == "csv":
        return to_csv(everything), notes
    tables = [
        render(rows, matched, METRICS[name], within=within, format=format, notes=notes)
        for name, rows in found.items()
    ]
    aside = [note for table in tables for note in table.notes_aside]
    return "\n".join(table.text for table in tables), aside
