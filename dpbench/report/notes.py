"""The notes below a table of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from dpbench.analysis.metrics import UNDER_LOAD
from dpbench.analysis.rows import Row
from dpbench.analysis.sentences import noise_warnings, some_of
from dpbench.messages import one_line
from dpbench.records.trial import Status
from dpbench.specs.traits import INDEPENDENT


def table_notes(
    rows: Sequence[Row], common: Sequence[str], column_notes: Sequence[str]
) -> tuple[str, ...]:
    """The notes below a table of rows: what they have in `common`, what the signs in its cells
    mean, the notes of its columns, what failed, who published the rows, and how many repetitions
    were or would be enough."""
    lines = [f"All {len(rows):,} rows: {', '.join(common)}"] if common else []
    if any(row.implementation == INDEPENDENT for row in rows):
        lines.append(
            "* copies without communication: an upper bound within noise, not a way to train"
        )
    if any(row.is_under_load for row in rows):
        lines.append(f"{UNDER_LOAD} other programs used the cores during some of its trials")
    lines += column_notes
    sources = dict.fromkeys(filter(None, (row.published.source for row in rows if row.published)))
    published = (f"source: {name}" for name in sources)
    return (
        *map(
            one_line, chain(lines, reasons(rows), published, noise_warnings(rows, rows, "report"))
        ),
    )


def reasons(rows: Sequence[Row]) -> Iterator[str]:
    """The full reason of every row that has one; equal reasons share a line."""
    ended = [row for row in rows if row.reason or row.status is Status.WRONG_GRADIENTS]
    for status, reason in dict.fromkeys((row.status, row.reason) for row in ended):
        same = [row for row in ended if (row.status, row.reason) == (status, reason)]
        yield f"{status.words}, {some_of(same, rows)}{f': {reason}' if reason else ''}"
