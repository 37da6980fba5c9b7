"""Text and JSON of `dpbench list`: what can be measured, or what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from dpbench.report.answer import Answer
from dpbench.report.table import text_table
from dpbench.report.terminal import filled, folded


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """A name that commands take."""

    kind: str
    name: str
    reason: str | None
    """Why it cannot be used here; None if it can."""
    description: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedResults:
    """One results folder in a few words."""

    folder: Path
    started_utc: str
    """Start of its first trial, ISO 8601; "" where there is none."""
    rows: int
    status: str
    hardware: str


def names_answer(rows: Sequence[Listed]) -> Answer:
    """A row for each name; names of one kind go without it."""
    headers = ("Kind", "Name", "Usable", "What")
    cells = [
        [one.kind, one.name, "yes" if one.reason is None else "no", one.reason or one.description]
        for one in rows
    ]
    table = text_table(headers, cells, words=headers)
    if len({one.kind for one in rows}) == 1:
        table = table.without(["Kind"])
    return Answer(paragraphs=(folded(table, ["What"]),), data=[asdict(one) for one in rows])


def overview(rows: Sequence[Listed], kinds: Mapping[str, str]) -> Answer:
    """A line for each kind, which `kinds` has in the plural; names that cannot be used here are in
    parentheses."""
    names: dict[str, list[str]] = {}
    for one in rows:
        name = one.name if one.reason is None else f"({one.name})"
        names.setdefault(kinds[one.kind], []).append(name)
    headers = ("Kind", "Names")
    table = text_table(
        headers, [(kind, ", ".join(of)) for kind, of in names.items()], words=headers
    )
    more = "(…): cannot be used here. dpbench list KIND has descriptions, options and reasons."
    return Answer(
        paragraphs=(folded(table, ["Names"]), filled(more)),
        data=[asdict(one) for one in rows],
    )


def results_answer(found: Sequence[ListedResults]) -> Answer:
    """A row for each results folder."""
    headers = ("Folder", "Date (UTC)", "Rows", "Status", "Hardware")
    cells = [
        [
            str(one.folder),
            one.started_utc[:16].replace("T", " "),
            f"{one.rows:,}",
            one.status,
            one.hardware,
        ]
        for one in found
    ]
    table = text_table(headers, cells, words=[name for name in headers if name != "Rows"])
    return Answer(
        paragraphs=(folded(table, ["Hardware", "Status", "Date (UTC)"]),),
        data=[{**asdict(one), "folder": str(one.folder)} for one in found],
    )
