"""The report page: one file that needs nothing else, from values that hold no markup."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from dpbench.report.page.content import Page
from dpbench.report.table import TableCell

HERE = Path(__file__).parent
_CODE = re.compile(r"`([^`\n]+)`|(?<![\w-])(--[a-z][a-z-]+(?: \d+)?)")
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, but not tabs and line ends
    "\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069"  # these change the direction of writing
    "\ud800-\udfff\ufffe\uffff]"  # no encoding has these
)


def to_html(page: Page) -> str:
    """The whole document; text of the page that looks like markup is shown as it is."""
    assets = {
        name: Markup((HERE / name).read_text(encoding="utf-8")) for name in ("style.css", "page.js")
    }
    template = _environment().get_template("page.html.jinja")
    return template.render(page=page, style=assets["style.css"], script=assets["page.js"])


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    environment.filters |= {"prose": _prose, "sort_key": _sort_key}
    return environment


def _prose(text: str) -> Markup:
    """Markup of a sentence, with `names` and --options set as code."""
    return Markup(_CODE.sub(r"<code>\1\2</code>", str(escape(visible(text)))))


def _sort_key(cell: TableCell) -> Markup | str:
    """The attribute that sorting reads, if it differs from the text."""
    if cell.sort is None:
        return Markup(' data-v=""')
    if isinstance(cell.sort, str):
        return ""
    return Markup(' data-v="{}"').format(f"{cell.sort:.9g}")


def visible(text: str) -> str:
    """The text with a replacement character for each one that is invisible or reverses text."""
    return _UNSEEN.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))
