"""The main table of the page: every column that there is, the usual ones shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.fields.identity import Ending
from dpbench.analysis.fields.levels import COLUMNS
from dpbench.records import Status
from dpbench.report.table import MISSING, Table, TableCell, TableColumn, TableRow, words
from dpbench.report.tables import Column, claim_columns, header_of
from dpbench.report.values import table_of

Rows = Sequence[ConfigurationSummary]

STATUS = TableColumn(
    key="status",
    header="Status",
    meaning="How the configuration ended; why it did not complete stands in a table of its own.",
    text=True,
)
"""Without the reason, which may be long."""


def results_table(rows: Rows) -> Table:
    """A row a configuration; cells say what the tables in other formats say, and are sorted by
    the values of the JSON rows."""
    columns = _columns(rows)
    table = table_of(columns, rows, key="configurations", caption="Configurations")
    shown = (
        STATUS
        if column.key == STATUS.key
        else replace(
            column,
            header=header_of(column.header, rows),
            shown=_is_shown(field, table.texts(place)),
        )
        for place, (field, column) in enumerate(zip(columns, table.columns, strict=True))
    )
    lines = (
        replace(line, status=row.status.value) for row, line in zip(rows, table.rows, strict=True)
    )
    return replace(table, columns=tuple(shown), rows=tuple(lines))


def _columns(rows: Rows) -> Sequence[Column]:
    """In the usual order, but for the status, which must not be scrolled out of sight."""
    usual = [column for column in COLUMNS.values() if column.key != STATUS.key]
    place = usual.index(COLUMNS["efficiency"]) + 1
    status = replace(COLUMNS[STATUS.key], read=lambda row: Ending(row.status, None))
    return (*usual[:place], status, *usual[place:], *claim_columns(rows))


def _is_shown(column: Column, texts: Sequence[str]) -> bool:
    """Usual ones with a value somewhere; of no rows at all, those that every sweep has."""
    if not texts:
        return column.shown == "always"
    return column.shown != "on request" and any(text != MISSING for text in texts)


def empty_columns(table: Table) -> tuple[str, ...]:
    """The headers of usual columns that have no value anywhere."""
    return tuple(
        column.header
        for column in table.columns
        if not column.shown and (known := COLUMNS.get(column.key)) and known.shown == "always"
    )


def failures_table(rows: Rows) -> Table | None:
    """Configurations that failed or were skipped, wholly or in part, with the full reason."""
    ended = [row for row in rows if row.status is not Status.COMPLETED or row.reason]
    if not ended:
        return None
    return Table(
        key="failures",
        caption="Configurations that did not complete, or not in all repetitions",
        columns=(
            TableColumn(key="configuration", header="Configuration", meaning="", text=True),
            STATUS,
            TableColumn(
                key="repetitions", header="Repetitions", meaning=COLUMNS["repetitions"].meaning
            ),
            TableColumn(
                key="reason", header="Reason", meaning="The first cause that is known.", text=True
            ),
        ),
        rows=tuple(
            TableRow(
                cells=(
                    words(row.label),
                    words(row.status.words),
                    TableCell(text=str(row.repetitions), sort=float(row.repetitions)),
                    words(row.reason or MISSING),
                ),
                status=row.status.value,
            )
            for row in ended
        ),
    )
