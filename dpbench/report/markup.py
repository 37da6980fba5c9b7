"""Fills in the templates of pages and JUnit, in which no text of a record is markup."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from markupsafe import escape as escape_html

from dpbench import __version__

TEMPLATES_FOLDER = Path(__file__).parent / "templates"
_CODE = re.compile(r"`([^`\n]+)`|(?<![\w-])(--[a-z][a-z-]+(?: \d+)?)")
"""Names and options, which never break at their hyphens on a page."""
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, but not tabs and line ends
    "\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069"  # these change the direction of writing
    "\ud800-\udfff\ufffe\uffff]"  # no encoding has these
)


def render_template(name: str, **content: Any) -> str:
    """The text of the template of this name."""
    return _environment().get_template(f"{name}.jinja").render(**content)


def visible(text: str) -> str:
    """The text with a replacement character for each one that is invisible or reverses text."""
    return _UNSEEN.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    environment.globals["version"] = __version__
    environment.filters |= {
        "prose": lambda text: Markup(
            _CODE.sub(r"<code>\1\2</code>", str(escape_html(visible(text))))
        ),
        "asset": lambda name: Markup((TEMPLATES_FOLDER / name).read_text(encoding="utf-8")),
    }
    return environment
