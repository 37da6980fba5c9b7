"""dpbench explain: why a configuration is as fast as it is, and what to try."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpbench.cli.messages import say, warn
from dpbench.cli.report import REPORT_FOLDER
from dpbench.cli.row_filter import RowFilter, family, listed, only
from dpbench.cli.values import positive_int
from dpbench.errors import UsageError

if TYPE_CHECKING:
    from dpbench.analysis.configuration import ConfigurationSummary
    from dpbench.store import StoredSweep


def explain(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A results folder of a sweep.")],
    json: Annotated[
        bool, typer.Option("--json", help="One object for programs instead of tables.")
    ] = False,
    implementations: Annotated[str | None, only("implementations", "implementation", "A,B")] = None,
    backends: Annotated[str | None, only("backends", "backend", "A,B")] = None,
    group_sizes: Annotated[str | None, only("numbers of replicas", "group-size", "N,N")] = None,
    batch_sizes: Annotated[str | None, only("batch sizes", "batch-size", "N,N")] = None,
    charts: Annotated[
        bool, typer.Option("--charts/--no-charts", help="Draw the waterfall (PNG and SVG).")
    ] = True,
) -> None:
    """Say where the efficiency goes: factors that multiply to it, and what to try.

    dpbench explain results/before-the-change --group-size 2

    A sweep with independent in it tells contention from the wrapper.
    """
    notes: list[str] = []
    wanted = RowFilter(
        implementations=listed("--implementations", implementations, _name, notes),
        backends=listed("--backends", backends, _name, notes),
        group_sizes=listed("--group-sizes", group_sizes, positive_int, notes),
        batch_sizes=listed("--batch-sizes", batch_sizes, positive_int, notes),
    )
    for note in notes:
        say(note)
    if folder.is_file():
        raise UsageError(_not_a_folder(folder))
    from dpbench.store import load

    _explain(load(folder), wanted, json=json, charts=charts)


def _name(option: str, token: str) -> str:
    return token.strip()


def _not_a_folder(path: Path) -> str:
    if path.suffix.lower() == ".csv":
        return (
            f"{path}: a table of speeds cannot be explained; factors come from the step times of "
            f"every rank, which only a results folder holds (dpbench report {path} prints it)"
        )
    return f"{path}: expected a results folder"


def _explain(sweep: StoredSweep, wanted: RowFilter, *, json: bool, charts: bool) -> None:
    from dpbench.analysis.advice import advise
    from dpbench.analysis.environments import environment_notes
    from dpbench.analysis.explanation import explain
    from dpbench.analysis.summary import summarize
    from dpbench.report.explanation import render, to_json

    rows = summarize(sweep.records)
    everything = explain(sweep.records, rows)
    chosen = [row for row in rows if wanted.passes(row)]
    explanations = [one for one in everything if wanted.passes(one.row)]
    if not explanations:
        raise UsageError(_nothing(sweep.folder, rows, chosen, [one.row for one in everything]))
    advice = advise(explanations, sweep.environments, everything)
    notes = environment_notes(sweep.records, sweep.environments)
    if json:
        typer.echo(to_json(explanations, advice, notes), nl=False)
    else:
        typer.echo(render(explanations, advice, rows=chosen, notes=notes), nl=False)
    warn(*sweep.warnings)
    if charts:
        _draw(sweep, chosen)


def _nothing(
    folder: Path,
    rows: Sequence[ConfigurationSummary],
    chosen: Sequence[ConfigurationSummary],
    explained: Sequence[ConfigurationSummary],
) -> str:
    """Why there is nothing to explain, and what there would be."""
    if explained:
        what = f"nothing to explain in {chosen[0].label}" if chosen else "no such row"
        return f"{folder}: {what}; there are {_axes(explained)}"
    if not rows:
        return f"{folder}: no trial has ended yet; dpbench sweep --resume goes on with it"
    ends = (f"{r.label} {r.status.words}: {r.reason}" for r in rows if r.reason)
    return (
        f"{folder}: nothing to explain, because no row has a speed to compare with `single`"
        f"{''.join(f' ({end})' for end in islice(ends, 1))}"
    )


def _axes(rows: Sequence[ConfigurationSummary]) -> str:
    """What the filters can choose from."""
    values: dict[str, list[Any]] = {
        "--implementations": [family(row) for row in rows],
        "--backends": [row.backend for row in rows],
        "--group-sizes": [row.group_size for row in rows],
        "--batch-sizes": [row.batch_size for row in rows],
    }
    return "; ".join(
        f"{option} {', '.join(map(str, dict.fromkeys(found)))}" for option, found in values.items()
    )


def _draw(sweep: StoredSweep, rows: Sequence[ConfigurationSummary]) -> None:
    from dpbench.errors import StoreError
    from dpbench.report.charts.files import write_charts
    from dpbench.report.charts.source import ChartSource
    from dpbench.report.charts.waterfall import WATERFALL, efficiency_waterfall
    from dpbench.report.document import CHART_FOLDER

    folder = sweep.folder / REPORT_FOLDER / CHART_FOLDER
    source = ChartSource(
        rows=tuple(rows),
        records=sweep.records,
        environments=sweep.environments,
        name=sweep.folder.resolve().name,
    )
    try:
        paths, remarks = write_charts(folder, {WATERFALL: efficiency_waterfall}, source)
    except OSError as error:
        raise StoreError(f"cannot write the chart to {folder}: {error.strerror}") from None
    for line in (*remarks, *(f"waterfall in {path}" for path in paths)):
        typer.echo(line, err=True)
