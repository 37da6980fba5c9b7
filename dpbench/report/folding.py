"""Makes a table of cells fit its width by breaking cells into lines, a column after the other."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

from dpbench.report.notes import WIDTH
from dpbench.report.text_table import longest_line

GAP = 2
"""Blanks between two columns."""
_TOGETHER = re.compile(r"(?<=[\d)]) (?=%)|(?<=batch|tects) (?=\d)|(?<=±) ")
"""Blanks at which nobody would break: before %, after ±, in "batch 16", "detects 8 %"."""
_GLUE = "\0"


def folded(
    rows: Sequence[Sequence[str]],
    columns: Iterable[int],
    *,
    headers: Sequence[str] = (),
    limit: int = WIDTH,
) -> list[list[str]]:
    """The rows, with cells of `columns` on several lines as far as it takes to fit `limit`.

    The first of the columns gives way first, down to its longest word; cells that are short
    enough stay on one line.
    """
    cells = [list(row) for row in rows]
    for column in columns:
        excess = _width(cells, headers) - limit
        if not cells or excess <= 0:
            break
        texts = [row[column] for row in cells]
        header = longest_line(headers[column : column + 1])
        words = longest_line(
            [word for text in texts for word in _TOGETHER.sub(_GLUE, text).split()]
        )
        width = max(longest_line(texts) - excess, header, words, 1)
        for row in cells:
            row[column] = _lines(row[column], width)
    return cells


def _width(rows: Sequence[Sequence[str]], headers: Sequence[str]) -> int:
    lines = [*rows, headers] if headers else rows
    widths = [longest_line(column) for column in zip(*lines, strict=True)]
    return sum(widths) + GAP * (len(widths) - 1)


def _lines(text: str, width: int) -> str:
    glued = _TOGETHER.sub(_GLUE, text)
    broken = textwrap.wrap(glued, width, break_long_words=False, break_on_hyphens=False)
    return "\n".join(broken).replace(_GLUE, " ")
