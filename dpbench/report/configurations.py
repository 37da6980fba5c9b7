"""The table of configurations: its columns, its text in each format, and rows for programs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from dpbench import units
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.formatting import TOO_NOISY, percent, span
from dpbench.analysis.losses import MIN_SLOPE_STEPS
from dpbench.analysis.metrics import ALWAYS, METRICS, ON_PAGES, UNDER_LOAD, Metric, claimed_metrics
from dpbench.analysis.published import CLAIM_END
from dpbench.analysis.rows import Row
from dpbench.analysis.sentences import noise_warnings, reasons, relative_to
from dpbench.errors import UsageError, unknown_name
from dpbench.messages import one_line, option_words
from dpbench.records.trial import Status
from dpbench.report import DATA_FORMATS, FORMATS
from dpbench.report.answer import json_text
from dpbench.report.commands import command_to_measure
from dpbench.report.table import MISSING, Column, Table
from dpbench.specs.command_line import CommandLine
from dpbench.specs.labels import IDENTITY
from dpbench.specs.traits import INDEPENDENT, SINGLE

if TYPE_CHECKING:
    import pandas as pd

GEM_COLUMNS = "gem"
"""The value of --columns for the table in the README of torch-ddp, a Ruby gem; it stands alone."""
SAYS_NOTHING = {MISSING, TOO_NOISY, Status.COMPLETED.words}
"""Cells that are not worth a column."""
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")
"""Beginnings of texts that a spreadsheet would compute; any text may come from a record."""


def rows_text(
    rows: Sequence[Row],
    *,
    format: str | None = None,
    columns: str | None = None,
    width: int | None = None,
) -> str:
    """The rows in a format, with the default columns, "gem" for those of a Ruby gem's README, or
    comma-separated keys, on a terminal of this width, see `Table.text`.

    Raises UsageError if the format or a column is unknown.
    """
    name = format or "text"
    if name not in FORMATS:
        raise unknown_name(option_words("format"), name, FORMATS)
    if name in DATA_FORMATS:
        from dpbench.analysis.frames import row_frame

        return frame_text(row_frame(rows), name, columns)
    table = configurations_table(rows, columns)
    return f"{table.markdown if name == 'markdown' else table.text(width)}\n"


def configurations_table(
    rows: Sequence[Row], columns: str | None = None, *, command: CommandLine | None = None
) -> Table:
    """The table of terminals, Markdown and pages; raises as `rows_text` does.

    Rows of one batch size stand together. Sizes that all rows have in common stand in a note.
    Columns without a value are left out; those that the user chose never are, and have the columns
    that identify rows before them unless they include one. With the `command` that measured, each
    row has the one that measures it alone, in a column that readers of a page can copy.
    """
    if columns == GEM_COLUMNS:
        return _gem_table(rows)
    rows = sorted(rows, key=lambda row: row.batch_size or 0)
    known = {m.key: m for m in (*METRICS, *claimed_metrics(rows)) if m.importance >= ON_PAGES}
    identity = [key for key in IDENTITY if known[key].importance == ALWAYS]
    chosen = () if columns is None else parse_keys(columns, known)
    if chosen and not {*chosen} & {*identity}:
        chosen = (*identity, *chosen)
    # Headers name what the rows count; if they count several items, each speed has its unit.
    items = {row.item for row in rows if row.throughput} or {row.item for row in rows}
    placed = list[Column]()
    common = list[str]()
    for key in dict.fromkeys((*chosen, *known)):
        metric = known[key].counting(map(one_line, items))
        column = metric_column(metric, rows, cell)
        cells = {*column.cells}
        if key not in chosen and cells <= {MISSING}:
            continue
        if chosen:
            column = replace(column, importance=ALWAYS if key in chosen else ON_PAGES)
        elif key in identity[1:] and len(cells) == 1 < len(rows):
            column = replace(column, importance=ON_PAGES)
            common.append(f"{key.replace('_', ' ')} {column.cells[0]}")
        elif metric.importance < ALWAYS and cells <= SAYS_NOTHING:
            column = replace(column, importance=ON_PAGES)
        placed.append(column)
    shown = {column.key: column for column in placed if column.importance > ON_PAGES}
    again = [command_to_measure(command, [row.configuration]) for row in rows] if command else []
    if any(again):
        placed.append(Column("", again, is_text=True, importance=ON_PAGES, key="command"))
    notes = [f"All {len(rows):,} rows: {', '.join(common)}"] if common else []
    notes += [*_mark_notes(rows), *_column_notes(rows, shown), *_row_notes(rows)]
    return Table(columns=tuple(placed), notes=tuple(notes), rules=_rules(rows))


def metric_column(
    metric: Metric[Any], sources: Sequence[Any], write: Callable[[Metric[Any], Any, Any], str]
) -> Column:
    """The column of a metric: its value in each row as `write` has it, sorted by plain values."""
    values = [metric.read(source) for source in sources]
    return Column(
        metric.header,
        [write(metric, *each) for each in zip(sources, values, strict=True)],
        # What is claimed is mostly numbers, whose digits are left alone.
        is_text=metric.value_type in ("text", "boolean") and not metric.key.endswith(CLAIM_END),
        importance=metric.importance,
        key=metric.key,
        meaning=metric.meaning,
        sort=[value.value if isinstance(value, Estimate) else value for value in values],
    )


def _mark_notes(rows: Sequence[Row]) -> Iterator[str]:
    """What the marks beside names mean."""
    if any(row.implementation == INDEPENDENT for row in rows):
        yield "* copies that do not communicate: the best possible, up to noise; not a way to train"
    if any(row.is_under_load for row in rows):
        note = f"{UNDER_LOAD} other programs used the cores during some of its trials"
        references = [row.reference for row in rows if row.reference]
        loaded = dict.fromkeys(row.label for row in references if row.is_under_load)
        if names := [*map(one_line, loaded)]:
            note += f", so speedups over {units.some_of(names, 2)} are doubtful, too"
        yield note


def _column_notes(rows: Sequence[Row], shown: Mapping[str, Column]) -> Iterator[str]:
    """How to read the columns that are shown."""
    estimates = [e for row in rows for e in (row.throughput, row.speedup) if e]
    repeated = [e for e in estimates if e.basis == "repetitions"]
    if repeated and shown.keys() & {"images_per_second", "speedup"}:
        count = span((e.sample_size for e in repeated), "repetition")
        yield f"± or (low–high): {percent(repeated[0].confidence)} t interval over {count}"
    if any(e.basis == "single value" for e in estimates):
        yield "without ±: single values (n = 1), which have no interval"
    larger = [row for row in rows if row.speedup and row.group_size > 1]
    if larger and shown.keys() & {"speedup", "efficiency"}:
        singles = [row for row in rows if row.implementation == SINGLE]
        has_several = len(singles) > len({row.batch_size for row in singles})
        alike = "with the same settings" if has_several else "at the same batch size"
        reference = f"{relative_to(larger)} {alike}"
        uncertainty = ", with the same relative ±" if repeated else ""
        yield f"Speedup: {reference}; Eff.: Speedup ÷ Size{uncertainty}"
        if any(row.is_above_linear for row in larger):
            yield "Eff. above 100 %: noise, or one replica alone uses the machine less well"
    if losses := shown.get("loss_slope_per_second"):
        have_intervals = all("±" in number for number in {*losses.cells} - SAYS_NOTHING)
        shortage = f"no ± below {MIN_SLOPE_STEPS} timed steps or 2 repetitions"
        how = "± noise within a run" if have_intervals else shortage
        compare = (
            "compare rows of one batch size; at one learning rate more replicas hardly raise it"
        )
        yield f"{losses.header}: fall of the loss ({how}); {compare}"
        if TOO_NOISY in losses.cells:
            yield f"{losses.header} {TOO_NOISY}: measure more steps or repetitions"


def _row_notes(rows: Sequence[Row]) -> Iterator[str]:
    """What failed, who published the rows, and how many repetitions would be enough."""
    sources = dict.fromkeys(row.published.source for row in rows if row.published)
    published = (f"source: {name}" for name in sources if name)
    yield from map(one_line, (*reasons(rows), *published, *noise_warnings(rows, rows, "report")))


def _rules(rows: Sequence[Row]) -> tuple[int, ...]:
    """The rows at which another batch size begins, unless most batch sizes have one row."""
    batches = [row.batch_size for row in rows]
    starts = [n for n, (above, below) in enumerate(pairwise(batches), 1) if above != below]
    return tuple(starts) if 2 * (len(starts) + 1) <= len(rows) else ()


def _gem_table(rows: Sequence[Row]) -> Table:
    """The columns of the gem's README, with its headers, order and number format."""
    rows = sorted(rows, key=lambda row: (row.backend or "", row.group_size, row.batch_size or 0))
    rates = [f"{row.throughput.value:.1f}" if row.throughput else MISSING for row in rows]
    return Table(
        columns=(
            Column("Backend", [row.backend or MISSING for row in rows], is_text=True),
            Column("Proc Group", [str(row.group_size) for row in rows], is_text=True),
            Column("Batch", [str(row.batch_size or MISSING) for row in rows], is_text=True),
            Column("Images/s", rates, is_text=True),
        ),
        notes=(*_mark_notes(rows), *_row_notes(rows)),
    )


def cell(metric: Metric[Row], row: Row, value: Any) -> str:
    """The text of a row's value of the metric."""
    if value is None:
        return MISSING
    if metric.words is not None:
        return metric.words(row)
    # A ratio without an interval would look the most exact of all beside a speed that is too noisy.
    is_bare = isinstance(value, Estimate) and value.basis == "single value"
    if is_bare and row.throughput in row.noisy_estimates:
        return TOO_NOISY
    return metric.write(value)


def frame_text(frame: pd.DataFrame, format: str, columns: str | None = None) -> str:
    """The rows for programs, as CSV or JSON, with these `columns`, all unless given.

    CSV has a header of keys and one line per row; missing values are empty, and an apostrophe
    stands before every text that a spreadsheet would compute. JSON is an array with one object per
    row; missing values are null and infinity is the text "inf". Raises UsageError for a format of
    documents or an unknown column.
    """
    if columns is not None:
        frame = frame[list(parse_keys(columns, map(str, frame.columns)))]

    if format == "json":
        return json_text(plain_rows(frame))
    if format != "csv":
        raise UsageError(f"{format} has rows of configurations only; expected csv or json")

    def inert(value: Any) -> Any:
        is_formula = isinstance(value, str) and value.startswith(_FORMULA_STARTS)
        return f"'{value}" if is_formula else value

    # Only the categories of a categorical column are seen; millions of steps share them.
    texts = {
        name: column.map(inert, na_action="ignore")
        for name, column in frame.select_dtypes(exclude="number").items()
    }
    return str(frame.assign(**texts).to_csv(index=False, lineterminator="\n"))


def plain_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows as plain values, see `frame_text`."""
    plain = frame.astype(object).where(frame.notna(), None)
    plain = plain.replace({math.inf: "inf", -math.inf: "-inf"})
    return [{str(key): value for key, value in row.items()} for row in plain.to_dict("records")]


def parse_keys(text: str, known: Iterable[str]) -> tuple[str, ...]:
    """Read --columns a,b,c."""
    names = tuple(name.strip() for name in text.split(","))
    keys = tuple(known)
    option = option_words("columns", text)
    for name in names:
        if name == GEM_COLUMNS:
            raise UsageError(f"{option}: expected {name} alone, and as text or markdown")
        if name not in keys:
            raise unknown_name(option_words("columns"), name, [*keys, GEM_COLUMNS])
        if names.count(name) > 1:
            raise UsageError(f"{option}: expected each column once, got {name} twice")
    return names
