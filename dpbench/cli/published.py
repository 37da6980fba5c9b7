"""dpbench published: how wrong the extrapolator is on tables that others published."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpbench.cli.messages import say
from dpbench.cli.written import write_text
from dpbench.errors import UsageError

if TYPE_CHECKING:
    from dpbench.analysis.laws.series import Series

TABLES = Path("results") / "published"
"""In the working directory, not in the package: the tables are data that people add to, and one
place is enough for them."""


def published(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PATH...",
            show_default=f"every .csv file in {TABLES}",
            help="Tables of group sizes and speeds, as dpbench fit reads them, or folders of them.",
        ),
    ] = None,
    residuals: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Also write the hold-outs to a .csv file, for dpbench fit."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One object for programs.")] = False,
) -> None:
    """Test the fit of scaling laws on published tables: fit small group sizes, predict larger ones.

    dpbench published

    dpbench published results/published/weak_scaling.csv mine.csv
    """
    from dpbench.analysis.laws.holdout import hold_outs
    from dpbench.report.holdout import answer

    series, notes = _usable(_tables(files or [TABLES]))
    cases = hold_outs(series)
    typer.echo(answer(cases, notes=notes).shown(as_json=json), nl=False)
    if residuals is not None:
        from dpbench.analysis.laws.holdout import as_csv

        write_text(residuals, as_csv(cases))
        say(f"hold-outs in {residuals}")


def _tables(paths: Sequence[Path]) -> list[Path]:
    """The files, and those of the folders, each once."""
    found: dict[Path, Path] = {}
    for path in paths:
        files = sorted(path.glob("*.csv")) if path.is_dir() or path == TABLES else [path]
        if not files:
            own = ", where dpbench's own are; run it in dpbench's repository, or name the files"
            raise UsageError(
                f"no tables in {path}{own if path == TABLES else ''}: dpbench published FILE.csv"
            )
        for file in files:
            found.setdefault(file.resolve(), file)
    return list(found.values())


def _usable(files: Sequence[Path]) -> tuple[list[Series], list[str]]:
    """The series with a hold-out, and a note for every file that has others.

    Where files call series the same, the labels get the file.
    """
    from dpbench.analysis.laws.holdout import unusable_reason
    from dpbench.analysis.laws.series_csv import read_series

    good: list[Series] = []
    notes = []
    read = {path: read_series(path) for path in files}
    labels = Counter(one.label for series in read.values() for one in series)
    for path, series in read.items():
        reasons = [reason for one in series if (reason := unusable_reason(one))]
        good += [
            one if labels[one.label] == 1 else replace(one, label=f"{path}: {one.label}")
            for one in series
            if unusable_reason(one) is None
        ]
        if reasons:
            several = f"{len(reasons)} of {len(series)} series" if len(series) > 1 else "not"
            why = "; ".join(dict.fromkeys(reasons))
            verb = "not used" if len(series) > 1 else "used"
            notes.append(f"{path}: {several} {verb}: {why}")
    if not good:
        raise UsageError(f"no series to withhold a group size from: {'; '.join(notes)}")
    return good, notes
