"""What a terminal shows of results: the verdict, one warning, the table, and where to read on."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpbench import units
from dpbench.analysis.subject import Subject
from dpbench.messages import one_line
from dpbench.records.environment import SYNTHETIC_NOTE
from dpbench.records.trial import Status
from dpbench.report.footnotes import reasons, warnings
from dpbench.report.headline import verdict
from dpbench.report.progress.terminal import WIDTH
from dpbench.report.tables import render
from dpbench.report.terminal import bullet
from dpbench.report.torch_ddp_table import TORCH_DDP_LAYOUT

MOST_REASONS = 3
"""Reasons of failures below the table; the others are notes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Screen:
    """The text above the last line, and the notes that --verbose prints."""

    text: str
    notes: tuple[str, ...]


def screen(subject: Subject, *, columns: str | None = None, width: int | None = None) -> Screen:
    """The verdict, at most one warning, the table of a subject, and why rows failed.

    Raises UnknownName or UsageError for unknown columns.
    """
    found = tuple(one for one in warnings(subject) if one != SYNTHETIC_NOTE)
    first = () if columns == TORCH_DDP_LAYOUT else found[:1]
    table = render(
        subject.rows,
        columns=columns,
        width=width,
        notes=(*found, *subject.hints, *subject.loss_notes),
    )
    has_verdict = subject.sweep is not None and columns != TORCH_DDP_LAYOUT
    lines = [*verdict(subject.headlines)] if has_verdict else []
    lines += [f"Warning: {one_line(warning)}" for warning in first]
    filled = [
        textwrap.fill(line, min(width or WIDTH, WIDTH), break_on_hyphens=False) for line in lines
    ]
    paragraphs = ["\n".join(filled), table.text.rstrip() if subject.rows else ""]
    failed = [row for row in subject.rows if row.status not in (Status.COMPLETED, Status.SKIPPED)]
    ends = reasons(failed)[:MOST_REASONS]
    paragraphs.append("\n".join(bullet(end, min(width or WIDTH, WIDTH)) for end in ends))
    notes = dict.fromkeys(note for note in table.notes_aside if note not in (*first, *ends))
    return Screen(text="\n\n".join(filter(None, paragraphs)) + "\n", notes=tuple(notes))


def last_line(page: Path | None, folder: Path | None, notes: Sequence[str]) -> str:
    """Where the report is, what to do next, and how many notes there are."""
    parts = [] if page is None else [f"Report: {page}"]
    if folder is not None:
        parts.append(f"Next: dpbench explain {folder}")
    if notes:
        parts.append(f"({units.counted(len(notes), 'note')}: --verbose)")
    return "   ".join(parts)


def notes_text(notes: Sequence[str], width: int | None) -> str:
    """The notes as a bulleted list."""
    return "\n".join(bullet(note, min(width or WIDTH, WIDTH)) for note in notes)
