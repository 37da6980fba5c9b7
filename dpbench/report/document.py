"""Writes a report folder: the page, the tables in four formats and the charts; each file whole or
not at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dpbench.analysis.subject import Subject
from dpbench.errors import StoreError
from dpbench.files import as_text, folder_inside, write_whole
from dpbench.report.collectives import stored_answer
from dpbench.report.page.build import build_page
from dpbench.report.page.html import to_html
from dpbench.report.page.pictures import Pictures, draw
from dpbench.report.tables import render
from dpbench.report.terminal import below, has_room_for_notes
from dpbench.store import StoredCollectives

PAGE = "index.html"
WHOLE_TABLE = "table.txt"
TABLES = {
    WHOLE_TABLE: "text",
    "table.md": "markdown",
    "table.csv": "csv",
    "table.json": "json",
}
REPORT_FOLDER = "report"
"""Name of the folder in a results folder."""
CHART_FOLDER = "charts"


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenReport:
    """The files that were written."""

    page: Path
    paths: tuple[Path, ...]
    """All, the page included."""


def write_report(folder: Path, subject: Subject, *, charts: bool = True) -> WrittenReport:
    """Writes folder/index.html, tables, and charts/*.svg; StoreError if that is not possible.

    Charts of an earlier report that have nothing to show any more are removed; with
    `charts=False` they are left as they are, and the page has none.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        drawings = folder_inside(folder, CHART_FOLDER, make=charts)
        paths = [write_whole(folder / name, as_text(text)) for name, text in _texts(subject)]
        pictures = draw(subject, drawings) if charts else Pictures()
        page = write_whole(folder / PAGE, as_text(to_html(build_page(subject, pictures))))
    except OSError as error:
        raise StoreError(f"cannot write the report to {folder}: {error.strerror}") from None
    return WrittenReport(page=page, paths=(*paths, *pictures.paths, page))


def _texts(subject: Subject) -> Iterator[tuple[str, str]]:
    if subject.rows or subject.sweep:
        for name, format in TABLES.items():
            table = render(subject.rows, format=format, notes=subject.notes)
            notes = below(table.notes_aside, format) if has_room_for_notes(format) else []
            yield name, "\n".join([table.text, *notes, ""]) if notes else table.text
    if subject.collectives is not None:
        yield from _of_collectives(subject.collectives)


def _of_collectives(stored: StoredCollectives) -> Iterator[tuple[str, str]]:
    found = stored_answer(stored)
    yield "collectives.txt", found.text
    yield "collectives.json", found.json
