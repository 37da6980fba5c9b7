"""What a terminal shows of results: the verdict, one warning, the table, and where to read on."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpbench import units
from dpbench.analysis.headline import Headline, NoResult
from dpbench.analysis.subject import Subject
from dpbench.messages import one_line
from dpbench.records.environment import SYNTHETIC_NOTE
from dpbench.records.trial import Status
from dpbench.report.footnotes import reasons, warnings
from dpbench.report.headline import speed_of
from dpbench.report.numbers import percentage
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


def verdict(headlines: Mapping[str, Headline]) -> Iterator[str]:
    """One sentence for each work: the fastest configuration and how well it scales."""
    for work, headline in headlines.items():
        prefix = f"{one_line(work)}: " if work else ""
        said = _sentence(headline)
        synthetic = " (synthetic: nothing was run)" if headline.synthetic else ""
        yield f"{prefix}{said if work else said[:1].upper() + said[1:]}{synthetic}."


def _sentence(headline: Headline) -> str:
    best, scaling = headline.fastest, headline.scaling
    if isinstance(best, NoResult):
        return f"no fastest configuration: {best.reason}"
    speed = f"{one_line(best.row.named_within_work.label)} at {speed_of(best.value)}"
    if best.rivals:
        others = [one_line(row.named_within_work.label) for row in best.rivals]
        said = f"no clear winner: {speed} is statistically tied with {others[0]}"
        return f"{said} and {len(others) - 1:,} more" if len(others) > 1 else said
    said = f"fastest: {speed}"
    if not isinstance(scaling, NoResult) and scaling.row == best.row:
        said += f", {percentage(scaling.value)} of linear scaling"
    return said


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
