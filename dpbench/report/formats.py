"""The names that --format takes."""

from __future__ import annotations

import tabulate

from dpbench.errors import UnknownName

DEFAULT = "simple"
DATA_FORMATS = ("csv", "json")
"""Plain values for programs: all keys, no footnotes."""
ALIASES = {"markdown": "github"}
MARKUP = (
    "asciidoc",
    "html",
    "jira",
    "latex",
    "latex_booktabs",
    "latex_longtable",
    "latex_raw",
    "mediawiki",
    "moinmoin",
    "rst",
    "textile",
    "tsv",
    "unsafehtml",
    "youtrack",
)
"""Formats to be pasted or parsed, in which free lines below the table would be in the way."""
LAYOUTS = tuple(tabulate.tabulate_formats)
FORMATS = tuple(sorted({*LAYOUTS, *DATA_FORMATS, *ALIASES}))


def check_format(name: str) -> str:
    """Returns the name; raises UnknownName if there is no such format."""
    if name not in FORMATS:
        raise UnknownName("format", name, FORMATS)
    return name


def has_room_for_notes(name: str) -> bool:
    """Tells whether footnotes may follow the table in the same text."""
    return name not in DATA_FORMATS and name not in MARKUP


def may_wrap_headers(name: str) -> bool:
    """Tells whether the format is for a terminal and knows cells of two lines."""
    multiline = name in tabulate.multiline_formats and name not in MARKUP
    return multiline and name not in ("github", "markdown", "pipe", "orgtbl")
