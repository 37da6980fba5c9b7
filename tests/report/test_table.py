"""Tables and sentences at any width, in which hostile texts stay texts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import tabulate

from dpbench.report.table import AT_MOST_MEANS, Column, Table, wrap_text

HOSTILE = "@channel <img src=x onerror=alert(1)> [a](b) | `c` *d* 5 % a_b"
TABLE = Table(columns=(Column("Name", [HOSTILE], is_text=True), Column("n", ["1,000 ± 3"])))


def lines(table: Table, width: int) -> list[str]:
    return table.text(width).splitlines()


@pytest.mark.parametrize(
    ("cells", "width", "expected"),
    [
        (["ddp/gloo ×2, batch 16", "dp ×1, batch 16"], 26, ["ddp/gloo ×2, batch 16"]),
        (["ddp/gloo ×2, batch 16", "dp ×1, batch 16"], 20, ["ddp/gloo ×2,", "batch 16"]),
        (["an unbreakableword"], 10, ["an", "unbreakableword"]),
        (["inconclusive (detects 8.2 %)"], 19, ["inconclusive", "(detects 8.2 %)"]),
    ],
)
def test_a_cell_folds_between_words_only_where_it_is_too_wide(
    cells: Sequence[str], width: int, expected: Sequence[str]
) -> None:
    table = Table(columns=(Column("", cells, is_text=True), Column("n", ["1"] * len(cells))))
    first = [line[: max(map(len, expected))].rstrip() for line in lines(table, width)[2:]]
    assert first[: len(expected)] == expected


def test_a_percentage_is_not_broken() -> None:
    assert wrap_text("a tolerance of 3 % holds", 16) == "a tolerance of\n3 % holds"
    assert wrap_text("  indented text", 12) == "  indented\n  text"


def test_columns_leave_in_their_order_before_a_number_is_broken() -> None:
    cells = ["ddp/gloo ×2, batch 16", "1,200 (900–1,600)", "1,100 (800–1,500)", "0.007", "faster"]
    looks = ({"is_text": True}, {"importance": 2}, {"importance": 2}, {"importance": 1}, {})
    table = Table(
        columns=tuple(
            Column(header, [cell], **look)
            for header, cell, look in zip(("Row", "A", "B", "p", "Is"), cells, looks, strict=True)
        )
    )
    for width, absent in ((75, ""), (60, "p"), (40, "A, B, p")):
        said = f" Not shown at {width} columns: {absent} (wider terminal, or a pipe)"
        assert " ".join(table.text(width).split()).endswith(said if absent else " faster")
        assert max(map(len, lines(table, width))) <= width


def test_a_mark_is_explained_below_a_table_that_has_it() -> None:
    assert AT_MOST_MEANS not in TABLE.text()
    assert tabulate.MIN_PADDING == 2, "that of other tables in this process"
    table = Table(columns=(Column("n", ["≤ 3 ms"]),))
    assert table.text().endswith(f"\n{AT_MOST_MEANS}")
    assert table.markdown.endswith(f"\n\n{AT_MOST_MEANS}")


def test_a_table_without_rows_is_its_notes() -> None:
    table = Table(columns=(Column("n", []),), notes=("shm: skipped", "gloo: failed"))
    assert table.text() == "shm: skipped\ngloo: failed"
    assert table.markdown == "shm: skipped\n\ngloo: failed"


def test_a_markdown_cell_is_no_markup() -> None:
    header, rule, line = TABLE.markdown.splitlines()
    assert line.startswith(r"| @​channel \<img src=x onerror=alert(1)\> \[a\](b) \| \`c\` \*d\*")
    assert rule.startswith("|:--")
    assert rule.endswith("-:|")
    assert len({len(header), len(rule), len(line)}) == 1
