"""Lays tables and notes out for people: the names that --format takes, lines that fit a terminal.

Where a table is too wide, what all rows share becomes a line above it. Then headers take two lines,
intervals shorten, the status narrows, and last of all columns go, those that matter least first.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal

import tabulate

from dpbench.errors import UnknownName
from dpbench.report.export.formats import escape, html_table, inert, latex_table, markdown_table
from dpbench.report.table import Table, longest_line

# Headers as wide as their words: two spaces more in each of 13 columns would not fit a terminal.
# Tabulate has no argument for it; set once, before any table is laid out.
tabulate.MIN_PADDING = 0

DEFAULT = "simple"
DATA_FORMATS = ("csv", "json", "jsonl")
"""Plain values for programs: all keys, no footnotes."""
ALIASES = {"github": "markdown", "pipe": "markdown", "latex_booktabs": "latex"}
OWN: dict[str, Callable[[Table], str]] = {
    "html": html_table,
    "latex": latex_table,
    "markdown": markdown_table,
}
"""Written by dpbench.report.export, in place of tabulate."""
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

WIDTH = 100
GAP = 2
"""Blanks between two columns."""
_TOGETHER = re.compile(r"(?<=[\d)]) (?=%)|(?<=batch|tects) (?=\d)|(?<=±) ")
"""Blanks at which nobody would break: before %, after ±, in "batch 16", "detects 8 %"."""
_GLUE = "\0"


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


def below(notes: Iterable[str], layout: str, width: int = WIDTH) -> list[str]:
    """The notes as they may stand below a table in that layout, in which none is markup."""
    if is_markdown(layout):
        return [f"- {escape(note)}" for note in notes]
    return [bullet(note, width) for note in notes]


def bullet(note: str, width: int = WIDTH) -> str:
    """The note behind "· ", its further lines indented; words stay whole."""
    return textwrap.fill(
        note,
        width,
        initial_indent="· ",
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def write_table(table: Table, layout: str = DEFAULT) -> str:
    """The table without a newline at its end; `layout` is one of FORMATS."""
    name = ALIASES.get(layout, layout)
    return OWN[name](table) if name in OWN else _tabulated(table, name)


def width_of(table: Table, layout: str) -> int:
    """Characters of the widest line that a terminal shows of the table."""
    return max(map(len, _tabulated(table, layout).splitlines()))


def folded(table: Table, keys: Iterable[str] | None = None, *, limit: int = WIDTH) -> Table:
    """The table, with cells on several lines as far as it takes to fit `limit`.

    The first of the columns `keys` (all unless given) gives way first, down to its longest word;
    cells that are short enough stay on one line.
    """
    order = [column.key for column in table.columns]
    for place in map(order.index, order if keys is None else keys):
        excess = _width(table) - limit
        if not table.rows or excess <= 0:
            break
        texts = table.texts(place)
        header = longest_line([table.columns[place].header])
        words = (word for text in texts for word in _TOGETHER.sub(_GLUE, text).split())
        width = max(longest_line(texts) - excess, header, longest_line(words), 1)
        table = table.with_texts(place, [_lines(text, width) for text in texts])
    return table


def _tabulated(table: Table, layout: str) -> str:
    if layout == "tsv":  # which a spreadsheet reads: words must not be formulas
        for place, column in enumerate(table.columns):
            if column.text:
                table = table.with_texts(place, [*map(inert, table.texts(place))])
    text: str = tabulate.tabulate(
        table.lines,
        headers=table.headers if any(table.headers) else (),
        tablefmt=layout,
        disable_numparse=True,
        colalign=["left" if c.text else "right" for c in table.columns] if table.rows else None,
    )
    return "\n".join(line.rstrip() for line in text.splitlines())


def _width(table: Table) -> int:
    widths = [
        longest_line([column.header, *table.texts(place)])
        for place, column in enumerate(table.columns)
    ]
    return sum(widths) + GAP * (len(widths) - 1)


def _lines(text: str, width: int) -> str:
    glued = _TOGETHER.sub(_GLUE, text)
    broken = textwrap.wrap(glued, width, break_long_words=False, break_on_hyphens=False)
    return "\n".join(broken).replace(_GLUE, " ")


NARROWEST_STATUS = 9
IDENTITY = ("implementation", "backend", "group_size", "batch_size")
"""Columns that say which row it is; a table for people has them unless --columns names others."""
RESULTS = ("images_per_second", "speedup", "efficiency", "loss_delta_per_second")
"""Main results of a sweep, in the order in which they are shown."""
ALWAYS = (*IDENTITY, *RESULTS, "status")
FIRST_TO_STAY = (
    *("loss_delta_per_second", "efficiency", "speedup"),
    "duration_seconds",
    "exposed_communication_seconds",
    "time_to_loss_seconds",
    "mfu",
    "final_loss",
    "joules_per_item",
    "peak_memory_bytes",
    "noise_scale_samples",
)
"""Columns that are kept longest, in order; of the others, those further left stay longer."""
SHORTENED = ("speedup", "loss_delta_per_second", "efficiency", "images_per_second")
"""Columns whose intervals shorten where there is no room. The speedup's goes first: divided by the
group size it is the efficiency's."""
_NUMBER = r"[-−]?[\d,.]+(?:e-\d+)?"
_SYMMETRIC = re.compile(rf"(?P<value>{_NUMBER}) ± {_NUMBER}(?P<unit>(?: \S+)?)")
_RANGE = re.compile(
    rf"(?P<value>{_NUMBER}) \((?P<low>{_NUMBER})(?:–| to )(?P<high>{_NUMBER})\)(?P<unit>(?: \S+)?)"
)

Width = Callable[[Table], int]
"""How many characters the widest line of a table takes in a layout."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitted:
    """The columns to show, and notes for the reader."""

    table: Table
    left_out: tuple[str, ...] = ()
    """Headers of columns that are not shown."""
    shortened: tuple[str, ...] = ()
    """Headers of columns without their intervals, or with the wider side of them."""


def shared(table: Table, keys: Collection[str]) -> tuple[Table, tuple[tuple[str, str], ...]]:
    """Takes out those of the columns `keys` whose text is the same in all rows.

    Returns the other columns, and (header, text) of what was taken out. A table of a single row
    keeps all of it.
    """
    if len(table.rows) < 2:
        return table, ()
    same = {
        column.key: (column.header, texts[0])
        for place, column in enumerate(table.columns)
        if column.key in keys and len(set(texts := table.texts(place))) == 1
    }
    kept = {column.key for column in table.columns} - set(same)
    return table.only(kept), tuple(same.values())


def fit(table: Table, width_of: Width, limit: int, *, all_of_them: bool) -> Fitted:
    """The most that fits `limit` characters; with `all_of_them` no column is left out."""
    line = table.widest  # all that widths depend on, however many rows there are
    if width_of(line) <= limit:
        return Fitted(table=table)
    table = _wrapped(table)
    kept = {column.key for column in table.columns}
    if not all_of_them and width_of(_narrowed(table.widest, 0)) > limit:
        kept &= {*ALWAYS}
    table, shortened = _shortened(table, kept, width_of, limit)
    line = table.widest
    if not all_of_them:
        kept = _most(line, kept, width_of, limit)
    left_out = (column.header for column in table.columns if column.key not in kept)
    shown, line = table.only(kept), line.only(kept)
    if (excess := width_of(line) - limit) > 0:
        shown = _narrowed(shown, _longest(line) - excess)
    return Fitted(
        table=shown,
        left_out=tuple(_in_one_line(left_out)),
        shortened=tuple(_in_one_line(shortened)),
    )


def _shortened(
    table: Table, kept: Collection[str], width_of: Width, limit: int
) -> tuple[Table, list[str]]:
    """The table with intervals as short as it takes for the columns `kept`; whose they are."""
    headers: list[str] = []
    for shorten in (_wider_side, _value_alone):
        for key in SHORTENED if shorten is _value_alone else reversed(SHORTENED):
            if width_of(_narrowed(table.widest.only(kept), 0)) <= limit:
                return table, headers
            place = next((k for k, one in enumerate(table.columns) if one.key == key), None)
            if place is None or (key == "images_per_second" and shorten is _value_alone):
                continue
            texts = table.texts(place)
            if (shorter := [shorten(text) for text in texts]) != texts:
                table = table.with_texts(place, shorter)
                headers = [*dict.fromkeys((*headers, table.columns[place].header))]
    return table, headers


def _wider_side(text: str) -> str:
    """ "88 (69–112) %" as "88 ± 24 %": the interval then holds more than it has to."""
    found = _RANGE.fullmatch(text)
    if found is None or "e" in found["value"]:
        return text
    value, low, high = (
        Decimal(found[name].replace(",", "").replace("−", "-")) for name in ("value", "low", "high")
    )
    return f"{found['value']} ± {max(value - low, high - value):,}{found['unit']}"


def _value_alone(text: str) -> str:
    for form in (_SYMMETRIC, _RANGE):
        if found := form.fullmatch(text):
            return f"{found['value']}{found['unit']}"
    return text


def _most(line: Table, kept: Collection[str], width_of: Width, limit: int) -> set[str]:
    """The columns that fit: which row it is and how fast, then the others by importance."""
    chosen = {*kept} - {*RESULTS[1:]}
    chosen &= {*IDENTITY, "images_per_second", "status"}
    for key in sorted((column.key for column in line.columns), key=_importance):
        if width_of(_narrowed(line.only(chosen | {key}), 0)) <= limit:
            chosen.add(key)
    return chosen


def _in_one_line(headers: Iterable[str]) -> Iterator[str]:
    return (header.replace("\n", " ") for header in headers)


def _wrapped(table: Table) -> Table:
    columns = (replace(one, header=one.wrapped or one.header) for one in table.columns)
    return replace(table, columns=tuple(columns))


def _importance(key: str) -> int:
    return FIRST_TO_STAY.index(key) if key in FIRST_TO_STAY else len(FIRST_TO_STAY)


def _longest(table: Table) -> int:
    """Characters of the column that can be narrowed."""
    texts = (table.texts(k) for k, column in enumerate(table.columns) if column.narrowed)
    return max(map(longest_line, texts), default=0)


def _narrowed(table: Table, width: int) -> Table:
    """Gives the column that can be narrowed so many characters."""
    most = max(NARROWEST_STATUS, width)
    for place, column in enumerate(table.columns):
        if column.narrowed:
            table = table.with_texts(place, column.narrowed(most))
    return table
