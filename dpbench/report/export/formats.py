"""Rows for other programs and tables for documents: one writer a format.

Rows are written one after the other as CSV, JSON or Parquet. Tables are written as
Markdown, HTML or LaTeX, in which no cell can be anything but text. LaTeX is plain ASCII, so that it
needs no input encoding and no font but the standard ones; of characters outside, those that tables
of dpbench hold have commands, others become "?".
"""

from __future__ import annotations

import csv
import html
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import IO, Any, TextIO, TypeVar

from dpbench.analysis.fields import Field, Plain
from dpbench.codec import encode
from dpbench.errors import UsageError
from dpbench.messages import one_line
from dpbench.report.table import Table, TableColumn

Rows = Iterable[Mapping[str, Plain]]


ROWS_PER_GROUP = 100_000
T = TypeVar("T")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
_SIGNED = re.compile(r"[+-](inf|nan|([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?)", re.ASCII)


def write_csv(file: TextIO, keys: Sequence[str], rows: Rows) -> None:
    """A header of keys, a line a row; what is missing is empty, and no text is a formula."""
    writer = csv.DictWriter(file, keys, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: inert(value) for key, value in row.items()} for row in rows)


def inert(value: T) -> T | str:
    """The value of a cell, with an apostrophe before a text that a spreadsheet would compute.

    Numbers stay numbers, negative ones too.
    """
    if isinstance(value, str) and value[:1] in _FORMULA and not _SIGNED.fullmatch(value):
        return f"'{value}"
    return value


def write_json(file: TextIO, keys: Sequence[str], rows: Rows) -> None:
    """An array with an object for each row; infinity and NaN are strings, as in the records."""
    lead = "[\n "
    for row in rows:
        file.write(f"{lead}{_object(keys, row)}")
        lead = ",\n "
    file.write("[]\n" if lead == "[\n " else "\n]\n")


WRITERS: dict[str, Callable[[TextIO, Sequence[str], Rows], None]] = {
    "csv": write_csv,
    "json": write_json,
}


def _object(keys: Sequence[str], row: Mapping[str, Plain]) -> str:
    plain = {key: encode(row[key]) for key in keys}
    text = json.dumps(plain, ensure_ascii=False, allow_nan=False, indent=1)
    return text.replace("\n", "\n ")


def write_parquet(
    file: IO[bytes], fields: Sequence[Field], rows: Iterable[Mapping[str, Plain]]
) -> None:
    """Typed columns, None as null; raises UsageError without pyarrow, OSError."""
    arrow, parquet = _pyarrow()
    types = {
        "text": arrow.string(),
        "integer": arrow.int64(),
        "number": arrow.float64(),
        "boolean": arrow.bool_(),
    }
    schema = arrow.schema(
        [arrow.field(f.key, types[f.kind], metadata={"description": f.meaning}) for f in fields]
    )
    left = iter(rows)
    with parquet.ParquetWriter(file, schema) as writer:
        while group := list(islice(left, ROWS_PER_GROUP)):
            columns = [[row[field.key] for row in group] for field in fields]
            arrays = [
                arrow.array(column, field.type)
                for column, field in zip(columns, schema, strict=True)
            ]
            writer.write_table(arrow.Table.from_arrays(arrays, schema=schema))


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UsageError(
            "--format parquet needs pyarrow, which is not installed; pip install 'dpbench[parquet]'"
        ) from None
    return pyarrow, pyarrow.parquet


MARKUP = re.compile(r"[\\`*_\[\]<>|~&]")
REFERENCE = re.compile(r"[@#](?=\w)")
"""Characters that GitHub turns into a mention or a link to an issue, even if escaped."""
ZERO_WIDTH_SPACE = "\u200b"


_COMMANDS = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"$<$",
    ">": r"$>$",
    "|": r"$|$",
    '"': "''",
    "`": r"\textasciigrave{}",
    "[": "{[}",  # at the start of a line it would be an argument of the one before
    "*": "{*}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "÷": r"$\div$",
    "−": "$-$",
    "–": "--",
    "—": "---",
    "…": r"\ldots{}",
    "·": r"$\cdot$",
    "µ": r"$\mu$",
    "μ": r"$\mu$",
    "σ": r"$\sigma$",
    "Σ": r"$\Sigma$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "²": r"$^2$",
    "₁": r"$_1$",
}
_EXPONENT = re.compile(r"(?<!\w)([\d.,]*\d)e(-?)[+0]*(\d+)(?!\w)")
_MINUS = re.compile(r"(?<![\w)])-(?=\d)")
_POWER, _END, _APART = "\0\1\2"
"""Stand for commands until the characters around them are escaped."""
LABEL = "tab:dpbench"


def markdown_table(table: Table) -> str:
    """Padded, so that it reads as plain text too; numbers stand right."""
    headers = [escape(header) for header in table.headers]
    lines = [[escape(cell) for cell in line] for line in table.lines]
    widths = [max(3, *map(len, column)) for column in zip(headers, *lines, strict=True)]
    words = [column.text for column in table.columns]

    def line(cells: list[str]) -> str:
        placed = (
            f"{cell:<{width}}" if left else f"{cell:>{width}}"
            for cell, width, left in zip(cells, widths, words, strict=True)
        )
        return f"| {' | '.join(placed)} |"

    rules = [
        "-" * width if left else f"{'-' * (width - 1)}:"
        for width, left in zip(widths, words, strict=True)
    ]
    return "\n".join([line(headers), line(rules), *map(line, lines)])


def escape(text: str) -> str:
    """The text as it is, in one line: nothing in it is markup, mentions anyone or ends a cell."""
    plain = MARKUP.sub(lambda found: f"\\{found[0]}", one_line(text))
    return REFERENCE.sub(lambda found: found[0] + ZERO_WIDTH_SPACE, plain)


def html_table(table: Table) -> str:
    """A table element without styles but the alignment of numbers; every text is escaped."""
    caption = [f"<caption>{html.escape(table.caption)}</caption>"] if table.caption else []
    headers = "".join(
        f'<th scope="col"{_aligned(column)}>{html.escape(column.header)}</th>'
        for column in table.columns
    )
    lines = (
        "<tr>"
        + "".join(
            f"<td{_aligned(column)}>{html.escape(cell)}</td>"
            for column, cell in zip(table.columns, line, strict=True)
        )
        + "</tr>"
        for line in table.lines
    )
    return "\n".join(
        [
            "<table>",
            *caption,
            f"<thead>\n<tr>{headers}</tr>\n</thead>",
            "<tbody>",
            *lines,
            "</tbody>",
            "</table>",
        ]
    )


def _aligned(column: TableColumn) -> str:
    """Notebooks would align words right too, and break numbers at their ±."""
    look = "text-align: left" if column.text else "text-align: right; white-space: nowrap"
    return f' style="{look}"'


def latex_table(table: Table) -> str:
    """Needs the package booktabs alone; numbers stand right, rows are not broken over pages."""
    alignment = "".join("l" if column.text else "r" for column in table.columns)
    body = [_line(line) for line in table.lines]
    return "\n".join(
        [
            "% \\usepackage{booktabs}",
            r"\begin{table}",
            r"\centering",
            *([rf"\caption{{{latex(table.caption)}}}"] if table.caption else []),
            rf"\label{{{LABEL}}}",
            rf"\begin{{tabular}}{{{alignment}}}",
            r"\toprule",
            _line(table.headers),
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


def latex(text: str) -> str:
    r"""Text that LaTeX prints as it reads: "1.2e-5 µs" is "1.2$\cdot10^{-5}$ $\mu$s"."""
    plain = "".join(" " if unicodedata.category(c) == "Cc" else c for c in text)
    marked = _MINUS.sub("−", plain).replace("--", f"-{_APART}-")
    marked = _EXPONENT.sub(rf"\1{_POWER}\2\3{_END}", marked)
    written = "".join(map(_character, marked))
    for mark, command in ((_POWER, r"$\cdot10^{"), (_END, "}$"), (_APART, "{}")):
        written = written.replace(mark, command)
    return written


def _line(cells: Iterable[str]) -> str:
    return " & ".join(map(latex, cells)) + r" \\"


def _character(character: str) -> str:
    if known := _COMMANDS.get(character):
        return known
    if character.isascii():
        return character
    plain = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    return "".join(_COMMANDS.get(c, c) for c in plain) or "?"
