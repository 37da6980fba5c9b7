"""Tables of GitHub's Markdown, in which no cell can be anything but text."""

from __future__ import annotations

import re

from dpbench.printable import one_line
from dpbench.report.table import Table

MARKUP = re.compile(r"[\\`*_\[\]<>|~&]")
REFERENCE = re.compile(r"[@#](?=\w)")
"""What GitHub turns into a mention or a link to an issue, even if it is escaped."""
ZERO_WIDTH_SPACE = "\u200b"


def markdown_table(table: Table) -> str:
    """Padded, so that it reads as plain text too; numbers stand right."""
    headers = [escape(header) for header in table.headers]
    lines = [[escape(cell) for cell in line] for line in table.lines]
    widths = [max(3, *map(len, column)) for column in zip(headers, *lines, strict=True)]
    words = [column.text for column in table.columns]

    def line(cells: list[str]) -> str:
        placed = (
            f"{cell:<{width}}" if left else f"{cell:>{width}}"
            for cell, width, left in zip(cells, widths, words, strict=True)
        )
        return f"| {' | '.join(placed)} |"

    rules = [
        "-" * width if left else f"{'-' * (width - 1)}:"
        for width, left in zip(widths, words, strict=True)
    ]
    return "\n".join([line(headers), line(rules), *map(line, lines)])


def escape(text: str) -> str:
    """The text as it is, in one line: nothing in it is markup, mentions anyone or ends a cell."""
    plain = MARKUP.sub(lambda found: f"\\{found[0]}", one_line(text))
    return REFERENCE.sub(lambda found: found[0] + ZERO_WIDTH_SPACE, plain)
