"""Cells on several lines where one is too wide."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from dpbench.report.table import text_table
from dpbench.report.terminal import filled, folded_or_fewer
from dpbench.report.terminal import folded as folded_table


def folded(
    rows: Sequence[Sequence[str]],
    places: Iterable[int],
    *,
    headers: Sequence[str] = (),
    limit: int = 100,
) -> list[list[str]]:
    table = text_table(headers or [" " * k for k in range(len(rows[0]))], rows)
    return folded_table(table, [table.columns[k].key for k in places], limit=limit).lines


def test_only_what_is_too_wide_is_broken_and_short_cells_are_not() -> None:
    rows = [["ddp/gloo ×2, batch 16", "1.0"], ["dp ×1, batch 16", "1.0"]]
    assert folded(rows, [0], limit=26) == rows
    assert folded(rows, [0], limit=20) == [
        ["ddp/gloo ×2,\nbatch 16", "1.0"],
        ["dp ×1, batch 16", "1.0"],
    ]


def test_the_next_column_gives_way_where_the_first_has_given_all_it_can() -> None:
    rows = [["cannot tell", "the same within 3 %"]]
    assert folded(rows, [0, 1], limit=19) == [["cannot\ntell", "the same\nwithin 3 %"]]


def test_headers_count_and_words_stay_whole() -> None:
    rows = [["an unbreakableword", "1"]]
    assert folded(rows, [0], headers=["Configuration", "Ratio"], limit=10) == [
        ["an\nunbreakableword", "1"]
    ]
    assert folded([], [0], headers=["A"]) == []


def test_a_number_keeps_its_unit() -> None:
    assert folded([["inconclusive (detects 8.2 %)"]], [0], limit=15) == [
        ["inconclusive\n(detects 8.2 %)"]
    ]


def test_a_percentage_is_not_broken() -> None:
    assert filled("a tolerance of 3 % holds", 16) == "a tolerance of\n3 % holds"


def test_columns_leave_before_a_number_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    cells = ["ddp/gloo ×2, batch 16", "1,200 (900–1,600)", "1,100 (800–1,500)", "0.007", "faster"]
    table = text_table(["Row", "A", "B", "p", "Is"], [cells])
    found, notes = folded_or_fewer(table, ["Is", "Row"], [["p"], ["A", "B"]])
    assert found.lines == [["ddp/gloo ×2,\nbatch 16", *cells[1:3], "faster"]]
    assert notes == ["left out to fit 60 columns (see --json): p"]
    monkeypatch.setenv("COLUMNS", "40")
    found, notes = folded_or_fewer(table, ["Is", "Row"], [["p"], ["A", "B"]])
    assert found.lines == [["ddp/gloo ×2, batch 16", "0.007", "faster"]]
    assert notes == ["left out to fit 40 columns (see --json): A, B"], "p fits once these have left"
