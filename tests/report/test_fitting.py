"""What is left of a table where there is no room for all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbench.analysis.summary import summarize
from dpbench.report.fitting import ALWAYS, Columns, fit
from dpbench.report.formats import FORMATS, is_for_terminals
from dpbench.report.layouts import _width
from dpbench.report.tables import render
from dpbench.report.text_table import TextColumn, longest_line
from tests.report.sample import sample_records

ROWS = summarize(sample_records())
TERMINAL_LAYOUTS = [name for name in FORMATS if is_for_terminals(name)]


def widest(text: str) -> int:
    return max(map(len, text.splitlines()))


def text(width: int, **options: str) -> str:
    return render(ROWS, width=width, whole="report/table.txt", **options).text


def column(key: str, size: int, **changes: object) -> TextColumn:
    return replace(TextColumn(key=key, header=key[:1], cells=("x" * size,)), **changes)


def total(columns: Columns) -> int:
    """Without anything between the columns."""
    return sum(longest_line([c.header, *c.cells]) for c in columns)


def keys(columns: Sequence[TextColumn]) -> list[str]:
    return [one.key for one in columns]


def test_the_most_important_columns_stay() -> None:
    columns = (
        column("implementation", 10),
        column("speedup", 10),
        column("efficiency", 10),
        column("anything_claimed", 5),
        column("final_loss", 4),
    )
    everything = fit(columns, total, 39, all_of_them=False)
    assert everything.left_out == ()
    fitted = fit(columns, total, 34, all_of_them=False)
    assert keys(fitted.columns) == ["implementation", "speedup", "efficiency", "final_loss"]
    assert fitted.left_out == ("a",)
    # speedup has no room left, but what is less important and narrower has.
    fitted = fit(columns, total, 29, all_of_them=False)
    assert keys(fitted.columns) == [
        "implementation",
        "efficiency",
        "anything_claimed",
        "final_loss",
    ]
    fitted = fit(columns, total, 3, all_of_them=False)
    assert keys(fitted.columns) == ["implementation"]


def test_headers_are_wrapped_before_a_column_goes() -> None:
    wide = column("final_loss", 4, header="Final loss", wrapped="Final\nloss")
    columns = (column("implementation", 10), wide)
    assert fit(columns, total, 20, all_of_them=False).columns[1].header == "Final loss"
    fitted = fit(columns, total, 15, all_of_them=False)
    assert (fitted.columns[1].header, fitted.left_out) == ("Final\nloss", ())
    fitted = fit(columns, total, 14, all_of_them=False)
    assert fitted.left_out == ("Final loss",)


def test_the_status_takes_what_the_others_leave() -> None:
    status = column("status", 30, narrowed=lambda width: ("x" * min(width, 30),))
    columns = (column("implementation", 10), status)
    assert total(fit(columns, total, 35, all_of_them=False).columns) == 35
    assert total(fit(columns, total, 12, all_of_them=False).columns) == 19


def test_what_was_asked_for_is_not_left_out() -> None:
    columns = tuple(column(key, 20) for key in ("implementation", "speedup", "final_loss"))
    assert fit(columns, total, 30, all_of_them=True).columns == columns


@given(st.integers(1, 250))
def test_a_table_is_as_wide_as_it_may_or_has_nothing_left_to_leave_out(width: int) -> None:
    columns = tuple(
        column(key, 9 + 3 * place)
        for place, key in enumerate([*ALWAYS[:-1], "speedup", "efficiency", "noise_scale_samples"])
    )
    fitted = fit(columns, total, width, all_of_them=False)
    assert total(fitted.columns) <= width or set(keys(fitted.columns)) <= set(ALWAYS)
    assert len(fitted.columns) + len(fitted.left_out) == len(columns)


@pytest.mark.parametrize("layout", TERMINAL_LAYOUTS)
def test_every_layout_for_terminals_fits(layout: str) -> None:
    assert widest(text(120, format=layout)) <= 120


def test_widths_of_layouts_are_those_of_the_text() -> None:
    columns = (column("a", 7), column("b", 3, words=True))
    assert _width("simple", columns) == 12
    assert _width("grid", columns) == 17


@pytest.mark.parametrize("width", [100, 80])
def test_a_table_names_what_it_leaves_out_and_where_it_is(width: int) -> None:
    found = text(width)
    assert widest(found) <= width
    header = found.splitlines()[0]
    assert all(name in header for name in ("Backend", "Group", "Batch", "Images/s", "Status"))
    said = " ".join(found.split())
    assert f"left out to fit {width} columns: " in said
    assert "Loss delta/step" in said
    assert "they are in report/table.txt, and --columns shows them" in said


def test_columns_that_were_asked_for_are_all_there_at_any_width() -> None:
    found = text(
        60, columns="implementation,images_per_second,speedup,efficiency,final_loss,status"
    )
    assert "left out" not in found
    assert "Speedup" in found
