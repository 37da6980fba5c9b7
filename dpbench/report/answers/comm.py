"""`dpbench comm`: one table in the terms of nccl-tests, with intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from dpbench import units
from dpbench.analysis.collectives import COLLECTIVE_METRICS, Collectives
from dpbench.analysis.estimate import TOO_NOISY_RATIO
from dpbench.analysis.formatting import span
from dpbench.analysis.metrics import DATA_ONLY
from dpbench.messages import one_line
from dpbench.records.trial import Status
from dpbench.report.answer import Answer
from dpbench.report.configurations import metric_column
from dpbench.report.table import Table, keep_on_line


def collectives_answer(collectives: Collectives, page: Path | None = None) -> Answer:
    """The warnings, the table, and where the page is."""
    return Answer(
        paragraphs=(
            "\n".join(f"Warning: {one_line(warning)}" for warning in collectives.warnings),
            collectives_table(collectives),
            keep_on_line(f"Report: {page}") if page else "",
        )
    )


def collectives_table(collectives: Collectives) -> Table:
    """A row for each collective, backend, group size and message size that has numbers; below it
    what failed, on what the others ran, and how to read them."""
    measured = [row for row in collectives.rows if row.nbytes is not None]
    columns = tuple(
        metric_column(metric, measured, lambda metric, _, value: metric.write(value))
        for metric in COLLECTIVE_METRICS
        if metric.importance != DATA_ONLY
    )
    return Table(groups=3, columns=columns, notes=tuple(_notes(collectives)))


def _notes(collectives: Collectives) -> Iterator[str]:
    rows = collectives.rows
    shown = {row.spec.label for row in rows}
    failed = Counter(
        (record.spec.label, record.status, record.reason)
        for record in collectives.records
        if record.spec.label in shown and record.status is not Status.COMPLETED
    )
    for (label, status, reason), count in failed.items():
        why = f": {one_line(reason)}" if reason else ""
        yield f"{label}: {status.words} ({units.counted(count, 'repetition')}){why}"
    times = [row.seconds for row in rows if row.seconds is not None]
    if not times:
        return
    devices = dict.fromkeys(row.spec.devices[0].partition(":")[0] for row in rows)
    threads = span([row.spec.threads for row in rows], "thread")
    repeated = span([seconds.sample_size for seconds in times], "repetition")
    device = "/".join(devices)
    yield f"float32, {threads} per rank, {device}; ±: 95 % t interval over n = {repeated}"
    for metric in COLLECTIVE_METRICS:
        if metric.value_type == "estimate":
            yield f"{metric.header}: {metric.meaning}"
    if any(seconds.is_too_noisy for seconds in times):
        yield (
            f"too noisy: intervals wider than a factor of {TOO_NOISY_RATIO:g} are not printed; add "
            "--repetitions, or free the machine"
        )
    yield "every result was checked before it was timed"
