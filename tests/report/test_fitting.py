"""Tables of sweeps that are as wide as a terminal has room for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbench.analysis.summary import summarize
from dpbench.records.trial import Status
from dpbench.report.fitting import ALWAYS_SHOWN, Fitted, fit_to_width, take_out_shared
from dpbench.report.table import Table, longest_line, text_table
from dpbench.report.tables import render
from dpbench.report.terminal import width_of
from tests.report.sample import sample_records

ROWS = summarize(sample_records())


def widest(text: str) -> int:
    return max(map(len, text.splitlines()))


def text(width: int, **options: str) -> str:
    return render(ROWS, width=width, whole="report/table.txt", **options).text


def table(**sizes: int) -> Table:
    """One row, with a column of so many characters for each key."""
    found = text_table([*sizes], [["x" * size for size in sizes.values()]])
    return replace(found, columns=tuple(replace(c, header=c.key[:1]) for c in found.columns))


def changed(found: Table, place: int, **changes: object) -> Table:
    columns = [*found.columns]
    columns[place] = replace(columns[place], **changes)
    return replace(found, columns=tuple(columns))


def total(found: Table) -> int:
    """Without anything between the columns."""
    return sum(longest_line([c.header, *found.texts(k)]) for k, c in enumerate(found.columns))


def keys(fitted: Fitted) -> list[str]:
    return [one.key for one in fitted.table.columns]


def test_the_most_important_columns_stay() -> None:
    found = table(implementation=10, speedup=10, efficiency=10, anything_claimed=5, final_loss=4)
    everything = fit_to_width(found, total, 39, all_of_them=False)
    assert everything.left_out == ()
    fitted = fit_to_width(found, total, 34, all_of_them=False)
    assert keys(fitted) == ["implementation", "speedup", "efficiency", "final_loss"]
    assert fitted.left_out == ("a",)
    # speedup has no room left, but what is less important and narrower has.
    fitted = fit_to_width(found, total, 29, all_of_them=False)
    assert keys(fitted) == ["implementation", "efficiency", "anything_claimed", "final_loss"]
    assert keys(fit_to_width(found, total, 3, all_of_them=False)) == ["implementation"]


def test_headers_are_wrapped_before_a_column_goes() -> None:
    found = changed(
        table(implementation=10, final_loss=4), 1, header="Final loss", wrapped="Final\nloss"
    )
    assert fit_to_width(found, total, 20, all_of_them=False).table.headers[1] == "Final loss"
    fitted = fit_to_width(found, total, 15, all_of_them=False)
    assert (fitted.table.headers[1], fitted.left_out) == ("Final\nloss", ())
    assert fit_to_width(found, total, 14, all_of_them=False).left_out == ("Final loss",)


def test_the_status_takes_what_the_others_leave() -> None:
    found = changed(
        table(implementation=10, status=30),
        1,
        narrowed=lambda width: ["x" * min(width, 30)],
    )
    assert total(fit_to_width(found, total, 35, all_of_them=False).table) == 35
    assert total(fit_to_width(found, total, 12, all_of_them=False).table) == 19


def test_what_was_asked_for_is_not_left_out() -> None:
    found = table(implementation=20, speedup=20, final_loss=20)
    assert fit_to_width(found, total, 30, all_of_them=True).table == found


@given(st.integers(1, 250))
def test_a_table_is_as_wide_as_it_may_or_has_nothing_left_to_leave_out(width: int) -> None:
    names = [*ALWAYS_SHOWN[:-1], "final_loss", "mfu"]
    found = table(**{key: 9 + 3 * place for place, key in enumerate(names)})
    fitted = fit_to_width(found, total, width, all_of_them=False)
    assert total(fitted.table) <= width or set(keys(fitted)) <= set(ALWAYS_SHOWN)
    assert len(fitted.table.columns) + len(fitted.left_out) == len(names)


def test_the_width_of_a_table_is_that_of_its_text() -> None:
    assert width_of(table(a=7, b=3)) == 12


@pytest.mark.parametrize("width", [100, 80])
def test_a_table_names_what_it_leaves_out_and_where_it_is(width: int) -> None:
    found = text(width)
    assert widest(found) <= width
    header = found.splitlines()[0]
    assert all(name in header for name in ("Backend", "Group", "Batch", "Images/s", "Status"))
    assert all(name in header for name in ("Speedup", "Loss"))
    said = " ".join(found.split())
    assert f"left out to fit {width} columns: " in said
    assert "Final loss" in said
    assert "they are in report/table.txt, and --columns shows them" in said


def test_columns_that_were_asked_for_are_all_there_at_any_width() -> None:
    found = text(
        60, columns="implementation,images_per_second,speedup,efficiency,final_loss,status"
    )
    assert "left out" not in found
    assert "Speedup" in found


def cells(*columns: tuple[str, *tuple[str, ...]]) -> Table:
    """Columns by their keys, each with its texts."""
    keys_of, *lines = zip(*columns, strict=True)
    found = text_table([*keys_of], lines)
    return replace(found, columns=tuple(replace(c, key=c.header) for c in found.columns))


def test_what_all_rows_share_is_taken_out_and_told() -> None:
    found = cells(
        ("implementation", "a", "a"), ("backend", "gloo", "gloo"), ("batch_size", "1", "2")
    )
    rest, same = take_out_shared(found, ("backend", "batch_size"))
    assert [column.key for column in rest.columns] == ["implementation", "batch_size"]
    assert same == (("backend", "gloo"),)
    one = replace(found, rows=found.rows[:1])
    assert take_out_shared(one, ("backend",)) == (one, ())


def test_intervals_shorten_before_a_column_goes() -> None:
    found = cells(
        ("images_per_second", "1,796 ± 357"),
        ("speedup", "1.8 (1.4–2.2)"),
        ("efficiency", "88 (69–112) %"),
        ("loss_slope_per_second", "1.2e-5 ± 0.3e-5"),
    )
    found = replace(found, columns=tuple(replace(c, header=c.key[:1]) for c in found.columns))
    fitted = fit_to_width(found, total, 11 + 9 + 9 + 15, all_of_them=False)
    assert fitted.table.lines == [["1,796 ± 357", "1.8 ± 0.4", "88 ± 24 %", "1.2e-5 ± 0.3e-5"]]
    assert fitted.shortened == ("e", "s")
    fitted = fit_to_width(found, total, 11 + 3 + 9 + 6, all_of_them=False)
    assert fitted.table.lines == [["1,796 ± 357", "1.8", "88 ± 24 %", "1.2e-5"]]
    assert fitted.left_out == ()


def test_a_wider_side_holds_the_whole_interval() -> None:
    found = cells(("speedup", "1,796 (1,500–2,200) µs"), ("efficiency", "x" * 30))
    fitted = fit_to_width(found, total, 47, all_of_them=True)
    assert fitted.table.lines[0][0] == "1,796 ± 404 µs"


def test_columns_that_were_asked_for_come_with_those_that_tell_rows_apart() -> None:
    header = text(100, columns="speedup,efficiency").splitlines()[0].split()
    assert header == ["Implementation", "Backend", "Group", "Batch", "Speedup", "Efficiency"]


def test_a_table_of_rows_that_are_all_well_says_so_once() -> None:
    well = [row for row in ROWS if row.status is Status.COMPLETED and row.reason is None]
    found = render(well, width=120).text
    assert found.startswith(f"All {len(well)} rows: ")
    assert "completed" in found.splitlines()[0]
    assert "Status" not in found.splitlines()[2]
