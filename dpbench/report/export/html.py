"""Tables as a fragment of HTML, to be put into a page of one's own."""

from __future__ import annotations

from html import escape

from dpbench.report.table import Table, TableColumn


def html_table(table: Table) -> str:
    """A table element without styles but the alignment of numbers; every text is escaped."""
    caption = [f"<caption>{escape(table.caption)}</caption>"] if table.caption else []
    headers = "".join(
        f'<th scope="col"{_aligned(column)}>{escape(column.header)}</th>'
        for column in table.columns
    )
    lines = (
        "<tr>"
        + "".join(
            f"<td{_aligned(column)}>{escape(cell)}</td>"
            for column, cell in zip(table.columns, line, strict=True)
        )
        + "</tr>"
        for line in table.lines
    )
    return "\n".join(
        [
            "<table>",
            *caption,
            f"<thead>\n<tr>{headers}</tr>\n</thead>",
            "<tbody>",
            *lines,
            "</tbody>",
            "</table>",
        ]
    )


def _aligned(column: TableColumn) -> str:
    """Notebooks would align words right too, and break numbers at their ±."""
    look = "text-align: left" if column.text else "text-align: right; white-space: nowrap"
    return f' style="{look}"'
