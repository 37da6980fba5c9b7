"""Text and JSON of `dpbench list`: what can be measured, or what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dpbench.report.answer import Answer
from dpbench.report.table import Table, column, text_column

Listed = tuple[str, str, str | None, str]
"""Kind and name that commands take; why it cannot be used here, None if it can; description."""
ListedFolder = tuple[Path, str, int, str, str]
"""Folder, start of its first trial in ISO 8601 ("" for none), rows, status, hardware."""


def names_answer(rows: Sequence[Listed]) -> Answer:
    """A row for each name, all of one kind."""
    return Answer(
        paragraphs=(
            Table(
                columns=(
                    text_column("Name", [name for _, name, _, _ in rows]),
                    text_column("Usable", ["no" if reason else "yes" for _, _, reason, _ in rows]),
                    text_column("What", [reason or text for *_, reason, text in rows], folds=True),
                )
            ),
        ),
        data=_data(rows),
    )


def overview(rows: Sequence[Listed]) -> Answer:
    """A line for each kind; names that cannot be used here are in parentheses."""
    names: dict[str, list[str]] = {}
    for kind, name, reason, _ in rows:
        names.setdefault(kind, []).append(name if reason is None else f"({name})")
    return Answer(
        paragraphs=(
            Table(
                columns=(
                    text_column("Kind", names),
                    text_column("Names", map(", ".join, names.values()), folds=True),
                )
            ),
            "(…): cannot be used here. dpbench list KIND has descriptions, options and reasons.",
        ),
        data=_data(rows),
    )


def _data(rows: Sequence[Listed]) -> list[dict[str, str | None]]:
    keys = ("kind", "name", "reason", "description")
    return [dict(zip(keys, row, strict=True)) for row in rows]


def results_answer(found: Sequence[ListedFolder]) -> Answer:
    """A row for each results folder."""
    keys = ("folder", "started_utc", "rows", "status", "hardware")
    return Answer(
        paragraphs=(
            Table(
                columns=(
                    text_column("Folder", [str(folder) for folder, *_ in found]),
                    text_column(
                        "Date (UTC)",
                        [started[:16].replace("T", " ") for _, started, *_ in found],
                        folds=True,
                    ),
                    column("Rows", [f"{rows:,}" for _, _, rows, _, _ in found]),
                    text_column("Status", [status for *_, status, _ in found], folds=True),
                    text_column("Hardware", [hardware for *_, hardware in found], folds=True),
                )
            ),
        ),
        data=[dict(zip(keys, (str(row[0]), *row[1:]), strict=True)) for row in found],
    )
