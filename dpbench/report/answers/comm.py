"""`dpbench comm`: one table in the terms of nccl-tests, with intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from dpbench import units
from dpbench.analysis.collectives import COLLECTIVE_FIELDS, CollectiveRow, collective_rows
from dpbench.analysis.estimate import TOO_NOISY, Estimate
from dpbench.analysis.metric import Style, Value
from dpbench.folders import StoredCollectives
from dpbench.messages import one_line
from dpbench.records.trial import Status
from dpbench.report.answer import Answer
from dpbench.report.formatting import NOISY, field_column, write
from dpbench.report.table import Table, keep_on_line

LEAVE = ("algorithm_bytes_per_second", "repetitions", "bus_bytes_per_second")
"""Columns that leave where the table is too wide for a terminal, in their order."""


def comm_answer(stored: StoredCollectives, *, page: Path | None = None) -> Answer:
    """What could not be read, a row for each collective, backend, group size and message size, with
    notes, and where the page is."""
    warnings = "\n".join(f"Warning: {one_line(warning)}" for warning in stored.warnings)
    table = collectives_table(collective_rows(stored.records))
    place = keep_on_line(f"Report: {page}") if page else ""
    return Answer(paragraphs=(warnings, table, [*collective_notes(stored)], place))


def collectives_table(rows: Sequence[CollectiveRow]) -> Table:
    """The rows with numbers."""
    measured = [row for row in rows if row.nbytes is not None]
    columns = []
    for field in COLLECTIVE_FIELDS:
        if field.header:
            leaves = LEAVE.index(field.key) + 1 if field.key in LEAVE else 0
            texts = [_text(row[field.key], field.style) for row in measured]
            columns.append(field_column(field, measured, texts, leaves=leaves))
    return Table(groups=3, columns=tuple(columns))


def _text(value: Value, style: Style) -> str:
    is_noisy = isinstance(value, Estimate) and value.is_too_noisy
    return NOISY if is_noisy else write(value, style)


def collective_notes(stored: StoredCollectives) -> Iterator[str]:
    """What failed and why, on what the others ran, and how to read the table."""
    failed = Counter(
        (record.spec.label, record.status, record.reason)
        for record in stored.records
        if record.status is not Status.COMPLETED
    )
    for (label, status, reason), count in failed.items():
        why = f": {one_line(reason)}" if reason else ""
        yield f"{label}: {status.words} ({units.counted(count, 'repetition')}){why}"
    rows = collective_rows(stored.records)
    times = [row.seconds for row in rows if row.seconds is not None]
    if not times:
        return
    devices = dict.fromkeys(row.spec.devices[0].partition(":")[0] for row in rows)
    threads = units.span([row.spec.threads for row in rows], "thread")
    repeated = units.span([seconds.sample_size for seconds in times], "repetition")
    yield f"float32, {threads} per rank, {'/'.join(devices)}"
    yield (
        "time: one call on the slowest rank, as the median over samples and the geometric mean "
        f"over n = {repeated} with its 95 % t interval"
    )
    yield (
        "algbw: size ÷ time; busbw: algbw × the factor of nccl-tests, such as "
        "2 (ranks - 1) ÷ ranks for all_reduce; GB is 10⁹ bytes"
    )
    if any(seconds.is_too_noisy for seconds in times):
        yield (
            f"too noisy: intervals wider than a factor of {TOO_NOISY:g} are not printed; add "
            "--repetitions, or free the machine"
        )
    yield "every result was checked before it was timed"
