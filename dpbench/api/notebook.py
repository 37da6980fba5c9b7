"""How results look in a notebook: the headline, the table, and what has to be said below it."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import partial
from html import escape
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from dpbench import units
from dpbench.messages import one_line
from dpbench.report.charts.style import house_style
from dpbench.report.tables import render

if TYPE_CHECKING:
    from dpbench.api.results import Results


COLUMNS = (
    *("implementation", "backend", "group_size", "batch_size"),
    *("images_per_second", "speedup", "efficiency", "exposed_communication_seconds", "status"),
)
"""Columns that fit a page; the frame has all."""
MOST_ROWS = 60
"""A notebook keeps every output; the frame has the rest."""


def fragment(results: Results) -> str:
    """HTML to be put into any page: no scripts, no styles of its own but alignment."""
    rows = results.rows[:MOST_ROWS]
    table = render(rows, format="html", columns=",".join(COLUMNS), notes=results.notes)
    parts = [f"<p><strong>{_plain(results.summary)}</strong></p>"] if results.spec else []
    parts += [f"<p>⚠ {_plain(warning)}</p>" for warning in results.warnings]
    if rows:
        parts.append(f'<div style="overflow-x: auto">\n{table.text}</div>')
    if len(rows) < len(results.rows):
        parts.append(f"<p>The first {len(rows)} of {len(results.rows):,} rows.</p>")
    parts += _notes(table.notes_aside if rows else results.notes)
    parts.append(f"<p><code>{_plain(repr(results))}</code></p>")
    return "\n".join(["<div>", *parts, "</div>"])


def _notes(notes: Sequence[str]) -> list[str]:
    """Folded away, since there are more of them than numbers in a small table."""
    if not notes:
        return []
    lines = "\n".join(f"<li>{_plain(note)}</li>" for note in notes)
    heading = units.counted(len(notes), "note")
    return [f"<details><summary>{heading}</summary>\n<ul>\n{lines}\n</ul>\n</details>"]


def _plain(text: str) -> str:
    """One line without what a terminal or a browser would act upon."""
    return escape(one_line(text))


def shown_by_notebooks(figure: Figure) -> Figure:
    """The figure, in a form that a notebook shows as a picture.

    Without pyplot, which charts do not use, it would show its name; and pyplot is the program's own
    to set up.
    """
    setattr(figure, "_repr_png_", partial(_png, figure))  # noqa: B010 - a figure declares none
    return figure


def _png(figure: Figure) -> bytes:
    written = io.BytesIO()
    with house_style():
        figure.savefig(written, format="png")
    return written.getvalue()
