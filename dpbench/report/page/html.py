"""The report page: one file that needs nothing else, from values that hold no markup.

Style, scripts and charts are inside; the page's own rules forbid it to fetch anything, and let
only these scripts run.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from dpbench.report.page.content import Page
from dpbench.report.table import Table, TableCell, TableColumn

HERE = Path(__file__).parent
MEASURED = "images_per_second"
"""The column whose cells carry a bar, as long as their value is part of the largest of the same
work."""
TELLING_APART = ("backend", "group_size", "batch_size")
SIGNIFICANT_DIGITS = 9
"""Digits of the numbers used for sorting: more than any clock gives."""
TALL = 0.8
"""Height ÷ width of a chart beyond which it has a sheet of paper for itself."""

_AMOUNT = re.compile(
    r"(?P<number>[-−]?\d[\d,.]*)(?P<spread>(?: (?:± [\d.,]+|\([^)]*\)))?(?: %)?)(?P<of>\s.+)?",
    re.DOTALL,
)
_SIZE = re.compile(r'viewBox="\S+ \S+ (?P<width>[\d.]+) (?P<height>[\d.]+)"')
_CODE = re.compile("`([^`\n]+)`")
_UNIT = r"(?:%|ms|µs|s|[KMGT]iB)(?!\w)"
_WHOLE = re.compile(
    r"\(?(?:--[a-z][a-z-]*(?: [\d,]+)?"
    r"|n = \d[\d,]*|batch [\d,]+"
    rf"|[-−+]?[\d.,]*\d(?: ± [\d.,]+(?: {_UNIT})?| {_UNIT})"
    r"|\S+ ×\d+|\S*[^\s(][-/]\w\S*)[;:,.)]*"
)
"""Text that must not be split at a line end: an option and its number, "n = 3", "5.1 ± 0.2 ms", a
configuration, "4.9e-15"; with the punctuation around it, which must not start a line."""


_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, but not tabs and line ends
    "\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069"  # what turns the direction of writing
    "\ud800-\udfff\ufffe\uffff]"  # what no encoding can hold
)


def to_html(page: Page) -> str:
    """The whole document; whatever text of the page looks like markup is shown as it is."""
    theme, behaviour = _asset("theme.js"), _asset("table.js") + _asset("page.js")
    return (
        _environment()
        .get_template("page.html.jinja")
        .render(
            page=page,
            style=_asset("style.css"),
            theme=theme,
            behaviour=behaviour,
            policy=_policy(theme, behaviour),
            definitions=_definitions(page),
        )
    )


@cache
def _environment() -> Environment:
    """One for all pages, because it compiles their templates, for a tenth of a second."""
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    environment.filters |= {
        "amount": _amount,
        "bars": _bars,
        "is_tall": _is_tall,
        "prose": _prose,
        "rests": _rests,
        "sort_key": _sort_key,
        "typed": _typed,
        "unbroken": _unbroken,
    }
    return environment


def _asset(name: str) -> Markup:
    """A style sheet or script of ours."""
    return Markup((HERE / name).read_text(encoding="utf-8"))


def _policy(*scripts: str) -> str:
    """The Content-Security-Policy: nothing from elsewhere, no script but these."""
    digests = (base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts)
    rules = {
        "default-src": "'none'",
        "style-src": "'unsafe-inline'",
        "script-src": " ".join(f"'sha256-{digest}'" for digest in digests),
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def _amount(value: str) -> tuple[str, str, str]:
    """The number to be set large, what stays beside it, and what follows: "91", "± 16 %", "of
    linear"."""
    found = _AMOUNT.fullmatch(value)
    if found is None:
        return value, "", ""
    return found["number"], found["spread"].strip(), (found["of"] or "").strip()


def _unbroken(text: str) -> Markup:
    """Text in which options, numbers with their units and names stay on one line."""
    return Markup(_WHOLE.sub(r'<span class="whole">\g<0></span>', str(escape(visible(text)))))


def _prose(text: str) -> Markup:
    """Markup of a sentence, with `names` set as code."""
    parts = _CODE.split(visible(text))
    return Markup().join(
        Markup("<code>{}</code>").format(part) if place % 2 else _unbroken(part)
        for place, part in enumerate(parts)
    )


def _typed(command: str) -> Markup:
    """A command whose lines end between words only."""
    return Markup(
        re.sub(r"\S+", r'<span class="whole">\g<0></span>', str(escape(visible(command))))
    )


def _sort_key(cell: TableCell) -> Markup | str:
    """The attribute that sorting reads, where it differs from the text."""
    if cell.sort is None:
        return Markup(" data-v")
    if isinstance(cell.sort, str):
        key = None if cell.sort == cell.text else cell.sort
    else:
        key = f"{cell.sort:.{SIGNIFICANT_DIGITS}g}"
    return "" if key is None else Markup(' data-v="{}"').format(visible(key))


def _bars(table: Table) -> tuple[int, list[int | None]]:
    """Which column carries bars (-1: none), and how long each row's is, in per cent."""
    place = next((i for i, column in enumerate(table.columns) if column.key == MEASURED), -1)
    values = [row.cells[place].sort if place >= 0 else None for row in table.rows]
    numbers = [value if isinstance(value, float | int) else None for value in values]
    largest: dict[str, float] = {}
    for row, value in zip(table.rows, numbers, strict=True):
        largest[row.work] = max(largest.get(row.work, 0.0), value or 0.0)
    return place, [
        None if value is None else round(100 * value / (largest[row.work] or 1))
        for row, value in zip(table.rows, numbers, strict=True)
    ]


def _rests(table: Table) -> list[str] | None:
    """Columns that a narrow screen shows below each row's name instead of beside it; None if the
    table has none of them."""
    if tuple(column.key for column in table.columns[1:4]) != TELLING_APART:
        return None
    cells = (row.cells for row in table.rows)
    return [f"{backend.text} ×{group.text}, {batch.text}" for _, backend, group, batch, *_ in cells]


def _is_tall(svg: str) -> bool:
    """Whether two of it on a sheet of paper would be too small to read."""
    found = _SIZE.search(svg)
    return found is not None and float(found["height"]) > TALL * float(found["width"])


def _definitions(page: Page) -> list[tuple[str, list[TableColumn]]]:
    """Captions of tables with the columns that no table before has, or not with that meaning."""
    known: set[tuple[str, str]] = set()
    groups: dict[str, list[TableColumn]] = {}
    for table in _tables(page):
        for column in table.columns:
            if column.meaning and (column.header, column.meaning) not in known:
                known.add((column.header, column.meaning))
                groups.setdefault(table.caption, []).append(column)
    return list(groups.items())


def _tables(page: Page) -> Iterator[Table]:
    sweep = page.sweep
    if sweep.results.rows:
        yield sweep.results
    if sweep.failures is not None:
        yield sweep.failures
    for section in sweep.sections:
        yield from section.tables


def visible(text: str) -> str:
    """The text with a visible symbol for each control character: "␛[31m", "�".

    What turns the direction of writing could make a name read as another, and lone surrogates
    cannot be written to a file; both become U+FFFD. A carriage return before a line end goes.
    """
    return _UNSEEN.sub(_picture, text.replace("\r\n", "\n"))


def _picture(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else "\N{REPLACEMENT CHARACTER}"
