"""A small table for a terminal: words left, numbers right, as they are written."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tabulate import tabulate


def plain_table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], *, words: Collection[str] = ()
) -> str:
    """Columns whose header is among `words` stand left, the others right; no trailing blanks."""
    text: str = tabulate(
        rows,
        headers=headers,
        disable_numparse=True,
        colalign=["left" if header in words else "right" for header in headers],
    )
    return "\n".join(line.rstrip() for line in text.splitlines())
