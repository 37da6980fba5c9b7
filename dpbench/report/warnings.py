"""Warnings to read before any number of a results folder is believed."""

from __future__ import annotations

from collections.abc import Iterator

from dpbench.analysis.subject import Subject
from dpbench.report.footnotes import some_of
from dpbench.report.steadiness import steadiness


def warnings(subject: Subject) -> tuple[str, ...]:
    """Warnings as lines, in the same order wherever results are shown or read."""
    return tuple(dict.fromkeys(_warnings(subject)))


def _warnings(subject: Subject) -> Iterator[str]:
    for stored in (subject.sweep, subject.collectives):
        yield from () if stored is None else stored.warnings
    yield from _doubts(subject)
    yield from subject.warnings
    yield from steadiness(subject.rows, some_of)


def _doubts(subject: Subject) -> Iterator[str]:
    """Which gradients were wrong, and which nobody checked."""
    if wrong := [row.label for row in subject.rows if row.verified is False]:
        yield f"wrong gradients, and no speed of theirs counts: {some_of(wrong)}"
    unchecked = [
        row.label
        for row in subject.rows
        if row.configuration and row.throughput and row.verified is None
    ]
    if unchecked:
        yield f"gradients were not compared with one process: {some_of(unchecked)}"
