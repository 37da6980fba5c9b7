"""Cells on several lines where one is too wide."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dpbench.report.table import text_table
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
    rows = [["cannot tell", "100 (76–131) %"]]
    assert folded(rows, [0, 1], limit=16) == [["cannot\ntell", "100\n(76–131) %"]]


def test_headers_count_and_words_stay_whole() -> None:
    rows = [["an unbreakableword", "1"]]
    assert folded(rows, [0], headers=["Configuration", "Ratio"], limit=10) == [
        ["an\nunbreakableword", "1"]
    ]
    assert folded([], [0], headers=["A"]) == []


def test_a_number_keeps_its_unit_and_its_interval_sign() -> None:
    assert folded([["inconclusive (detects 8.2 %)"]], [0], limit=15) == [
        ["inconclusive\n(detects 8.2 %)"]
    ]
    assert folded([["within 1.0 ± 0.2 of it"]], [0], limit=10) == [["within 1.0\n± 0.2 of\nit"]]
