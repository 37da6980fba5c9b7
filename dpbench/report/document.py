"""Writes a report folder: the table in four formats and the charts, each file at once or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.environment import Environment
from dpbench.errors import StoreError
from dpbench.records import TrialRecord
from dpbench.report.charts import CHARTS
from dpbench.report.charts.files import write_charts, write_whole
from dpbench.report.charts.source import ChartSource
from dpbench.report.tables import render

TABLES = {
    "table.txt": "simple",
    "table.md": "markdown",
    "table.csv": "csv",
    "table.json": "json",
}
CHART_FOLDER = "charts"


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenReport:
    """The files that were written, and why others were not."""

    paths: tuple[Path, ...]
    remarks: tuple[str, ...]


def write_report(
    folder: Path,
    rows: Sequence[ConfigurationSummary],
    *,
    records: Sequence[TrialRecord] = (),
    environments: Mapping[str, Environment] | None = None,
    name: str,
    notes: Sequence[str] = (),
    charts: bool = True,
) -> WrittenReport:
    """Writes folder/table.* and folder/charts/*; raises StoreError if that is not possible.

    `name` tells in the captions what was measured. Charts of an earlier report that have nothing
    to show any more are removed; with `charts=False` they are left as they are.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths = [
            write_whole(
                folder / file, partial(_text, text=render(rows, format=format, notes=notes).text)
            )
            for file, format in TABLES.items()
        ]
        if not charts:
            old = (folder / CHART_FOLDER).exists()
            remarks = [f"charts in {folder / CHART_FOLDER} are older than the table"] if old else []
            return WrittenReport(paths=tuple(paths), remarks=tuple(remarks))
        source = ChartSource(
            rows=tuple(rows), records=tuple(records), environments=environments or {}, name=name
        )
        drawn, remarks = write_charts(folder / CHART_FOLDER, CHARTS, source)
    except OSError as error:
        raise StoreError(f"cannot write the report to {folder}: {error.strerror}") from None
    return WrittenReport(paths=(*paths, *drawn), remarks=tuple(remarks))


def _text(path: Path, *, text: str) -> None:
    path.write_text(text, encoding="utf-8")
