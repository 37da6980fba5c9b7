"""Cells of the map: percentages of the table, and how the rest ended."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.axes import Axes

from dpbench.report.charts.efficiency_map import efficiency_map
from dpbench.report.charts.source import NothingToDraw
from tests.analysis.builders import record, run, trial
from tests.report.charts.pictured import figure, sweep, title
from tests.report.charts.sources import source


def cells(axes: Axes) -> dict[tuple[int, int], str]:
    """By column and row, from the lower left."""
    found = {}
    for text in axes.texts:
        x, y = text.get_position()
        found[int(x), int(y)] = text.get_text()
    return found


def test_every_efficiency_of_several_replicas_has_its_cell() -> None:
    panels = {title(axes): cells(axes) for axes in figure("efficiency-map").axes}
    places = {(32, 2): (0, 0), (32, 4): (1, 0), (128, 2): (0, 1), (128, 4): (1, 1)}
    shown = 0
    for row in sweep().rows:
        if row.efficiency is None or row.group_size == 1:
            continue
        assert row.batch_size is not None
        assert row.efficiency.interval is not None
        low, high = row.efficiency.interval
        value = f"{100 * row.efficiency.value:.0f}"
        text = panels[row.series][places[row.batch_size, row.group_size]]
        assert text == f"{value} %\n({100 * low:.0f}–{100 * high:.0f})"
        shown += 1
    assert shown == sum(map(len, panels.values())) == 16


def test_of_one_group_size_there_is_one_panel_with_a_row_for_each_implementation() -> None:
    """Speeds of 100 at one replica and 150, 180 at two: 75 and 90 % in the columns."""
    records = [run(trial("ddp", "gloo", 1, batch), 100.0) for batch in (16, 32)]
    records += [run(trial("ddp", "gloo", 2, 16), 150.0), run(trial("ddp", "gloo", 2, 32), 180.0)]
    records += [record(trial("torch-ddp", "gloo", 2, 16))]
    records += [run(trial("torch-ddp", "gloo", n, 32), 100.0 * n) for n in (1, 2)]
    (axes,) = efficiency_map(source(records)).axes
    assert title(axes) == "group size 2"
    assert [label.get_text() for label in axes.get_yticklabels()] == ["torch-ddp/gloo", "ddp/gloo"]
    assert cells(axes) == {
        (0, 0): "failed",
        (1, 0): "100 %",
        (0, 1): "75 %",
        (1, 1): "90 %",
    }
    (mesh,) = axes.collections
    values = np.ma.filled(mesh.get_array(), np.nan)
    assert values.ravel().tolist() == pytest.approx([np.nan, 1.0, 0.75, 0.9], nan_ok=True)


def test_one_batch_size_makes_no_map() -> None:
    records = [run(trial("ddp", "gloo", n), 100.0 * n) for n in (1, 2, 4)]
    with pytest.raises(NothingToDraw, match="two batch sizes"):
        efficiency_map(source(records))
