"""Writes the tables and the chart of collectives into a report folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from dpbench.collectives import CollectiveRecord
from dpbench.environment import Environment
from dpbench.errors import StoreError
from dpbench.report.charts.bandwidth import BANDWIDTH, bandwidth_chart
from dpbench.report.charts.files import write_charts, write_whole
from dpbench.report.charts.source import ChartSource
from dpbench.report.collectives import as_data, render
from dpbench.report.document import CHART_FOLDER, WrittenReport


def write_collectives(
    folder: Path,
    records: Sequence[CollectiveRecord],
    *,
    environments: Mapping[str, Environment],
    name: str,
    notes: Sequence[str] = (),
    charts: bool = True,
) -> WrittenReport:
    """Writes folder/collectives.txt and .json and folder/charts/bandwidth_by_size.*.

    `name` tells in the caption what was measured. Raises StoreError if that is not possible.
    """
    data = json.dumps(as_data(records), indent=1, ensure_ascii=False, allow_nan=False)
    texts = {
        "collectives.txt": render(records, notes=notes),
        "collectives.json": f"{data}\n",
    }
    source = ChartSource(rows=(), environments=environments, name=name)
    drawn: tuple[list[Path], list[str]] = ([], [])
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths = [
            write_whole(folder / file, partial(_text, text=text)) for file, text in texts.items()
        ]
        if charts:
            chart = {BANDWIDTH: bandwidth_chart(records)}
            drawn = write_charts(folder / CHART_FOLDER, chart, source)
    except OSError as error:
        raise StoreError(f"cannot write the report to {folder}: {error.strerror}") from None
    return WrittenReport(paths=(*paths, *drawn[0]), remarks=tuple(drawn[1]))


def _text(path: Path, *, text: str) -> None:
    path.write_text(text, encoding="utf-8")
