"""Writes a report folder: the page and tables in four formats; each file whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dpbench.analysis.subject import Subject
from dpbench.errors import StoreError
from dpbench.files import as_text, is_free, write_whole
from dpbench.report.collectives import stored_answer
from dpbench.report.footnotes import footnotes
from dpbench.report.layout import WIDTH, bullets, escape
from dpbench.report.markup import render_template
from dpbench.report.page import Pictures, build_page, draw
from dpbench.report.tables import rows_text

PAGE = "index.html"
TABLES = {
    "table.txt": "text",
    "table.md": "markdown",
    "table.csv": "csv",
    "table.json": "json",
}
REPORT_FOLDER = "report"
"""Name of the folder in a results folder."""
GENERATOR, HEAD_BYTES = b'<meta name="generator" content="dpbench ', 2000
"""What the beginning of each page holds."""
CHART_FOLDER = "charts"
"""Name of the folder in it with the files of `dpbench plot`."""


def write_report(folder: Path, subject: Subject, *, charts: bool = True) -> Path:
    """Writes folder/index.html and tables, and returns the page; raises StoreError.

    With `charts=False` the page has none.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in _texts(subject):
            write_whole(folder / name, as_text(text))
    except OSError as error:
        raise StoreError(f"cannot write the report to {folder}: {error.strerror}") from None
    return write_page(folder / PAGE, subject, charts=charts)


def require_report_folder(folder: Path) -> None:
    """Raise StoreError if a folder that the user names holds files, but no report."""
    page = folder / PAGE
    is_report = page.is_file() and GENERATOR in page.read_bytes()[:HEAD_BYTES]
    if not (is_report or is_free(folder)):
        raise StoreError(
            f"{folder} holds other files; expected an empty folder, or one with a report of dpbench"
        )


def write_page(path: Path, subject: Subject, *, charts: bool = True) -> Path:
    """Writes the page alone, and returns its path; raises StoreError."""
    pictures = draw(subject) if charts else Pictures()
    text = render_template("page.html", page=build_page(subject, pictures))
    try:
        return write_whole(path, as_text(text))
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from None


def _texts(subject: Subject) -> Iterator[tuple[str, str]]:
    if subject.rows or subject.sweep:
        for name, format in TABLES.items():
            text, left_out = rows_text(subject.rows, format=format)
            notes = (*footnotes(subject.rows), *subject.notes, *left_out)
            if format == "text":
                text += f"\n{bullets(notes)}\n"
            elif format == "markdown":
                text += "".join(f"\n- {escape(note)}" for note in notes) + "\n"
            yield name, text
    if subject.collectives is not None:
        found = stored_answer(subject.collectives)
        yield "collectives.txt", found.laid_out(WIDTH)
        yield "collectives.json", found.json
