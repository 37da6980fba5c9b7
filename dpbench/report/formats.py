"""The names that --format takes, and what tabulate knows of their layouts."""

from __future__ import annotations

import tabulate

from dpbench.errors import UnknownName

# Headers as wide as their words: two spaces more in each of 13 columns would not fit a terminal.
# Tabulate has no argument for it; set once, before `terminal` lays any table out.
tabulate.MIN_PADDING = 0

DEFAULT = "simple"
DATA_FORMATS = ("csv", "json", "jsonl")
"""Plain values for programs: all keys, no footnotes."""
ALIASES = {"github": "markdown", "pipe": "markdown", "latex_booktabs": "latex"}
OWN = ("html", "latex", "markdown")
"""Written by dpbench.report.export."""
MARKUP = (
    "asciidoc",
    "html",
    "jira",
    "latex",
    "latex_booktabs",
    "latex_longtable",
    "mediawiki",
    "moinmoin",
    "rst",
    "textile",
    "tsv",
    "youtrack",
)
"""Formats to be pasted or parsed, in which free lines below the table would be in the way."""
UNSAFE = ("latex_raw", "unsafehtml")
"""Layouts of tabulate that would let a name of a record act as markup."""
LAYOUTS = tuple(name for name in tabulate.tabulate_formats if name not in UNSAFE)
FORMATS = tuple(sorted({*LAYOUTS, *DATA_FORMATS, *ALIASES, *OWN}))


def check_format(name: str) -> str:
    """Returns the name; raises UnknownName if there is no such format."""
    if name not in FORMATS:
        raise UnknownName("format", name, FORMATS)
    return name


def has_room_for_notes(name: str) -> bool:
    """Tells whether footnotes may follow the table in the same text."""
    return name not in DATA_FORMATS and name not in MARKUP


def is_markdown(name: str) -> bool:
    """Tells whether text beside the table would be read as Markdown too."""
    return ALIASES.get(name, name) == "markdown"


def is_for_terminals(name: str) -> bool:
    """Tells whether the layout is read in a terminal and knows cells of two lines."""
    multiline = name in tabulate.multiline_formats and name not in MARKUP
    return multiline and not is_markdown(name) and name != "orgtbl"


def is_for_programs(name: str) -> bool:
    """Whether a program reads it: the columns are then those that were asked for, and no others."""
    return name in DATA_FORMATS or name == "tsv"
