"""Writes a report folder: the table in four formats and the charts, each file at once or not."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.environment import Environment
from dpbench.errors import StoreError
from dpbench.records import TrialRecord
from dpbench.report.charts import CHARTS
from dpbench.report.charts.source import ChartSource, NothingToDraw
from dpbench.report.charts.style import house_style
from dpbench.report.tables import render

TABLES = {
    "table.txt": "simple",
    "table.md": "markdown",
    "table.csv": "csv",
    "table.json": "json",
}
CHART_FOLDER = "charts"
IMAGES = ("png", "svg")
PIXELS_PER_INCH = 130


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
            _write(
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
        drawn, remarks = _write_charts(folder / CHART_FOLDER, source)
    except OSError as error:
        raise StoreError(f"cannot write the report to {folder}: {error.strerror}") from None
    return WrittenReport(paths=(*paths, *drawn), remarks=tuple(remarks))


def _write_charts(folder: Path, source: ChartSource) -> tuple[list[Path], list[str]]:
    folder.mkdir(exist_ok=True)
    paths, remarks = [], []
    with house_style():
        for name, chart in CHARTS.items():
            files = [folder / f"{name}.{image}" for image in IMAGES]
            try:
                figure = chart(source)
            except NothingToDraw as reason:
                remarks.append(f"no chart {name}: {reason}")
                for file in files:
                    file.unlink(missing_ok=True)
                continue
            paths += [_write(file, _saver(figure, file.suffix[1:])) for file in files]
    return paths, remarks


def _saver(figure: Figure, image: str) -> Callable[[Path], None]:
    # Without its date, equal data gives an equal file.
    metadata = {"Date": None} if image == "svg" else {}

    def save(path: Path) -> None:
        figure.savefig(path, format=image, dpi=PIXELS_PER_INCH, metadata=metadata)

    return save


def _text(path: Path, *, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _write(path: Path, write: Callable[[Path], None]) -> Path:
    """Writes beside the file and renames, so that nobody ever reads half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path
