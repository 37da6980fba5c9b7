"""Text and JSON of `dpbench comm`: one table in the terms of nccl-tests, with intervals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from dpbench import units
from dpbench.analysis.communication.timings import (
    SIZE_METRICS,
    MeasuredCollective,
    SizeCost,
    measured,
)
from dpbench.analysis.comparisons.comparability import environment_notes
from dpbench.analysis.estimate import TOO_NOISY, Estimate
from dpbench.analysis.metric import Metric
from dpbench.messages import one_line
from dpbench.report.answer import Answer, bullets, plain_estimate
from dpbench.report.numbers import NOISY
from dpbench.report.table import Table, TableCell, TableColumn, text_column, whole, words
from dpbench.report.terminal import fitted
from dpbench.report.values import table_of
from dpbench.store import StoredCollectives

SIZE = {metric.key: metric for metric in SIZE_METRICS}
COLUMNS: tuple[Metric, ...] = (
    *(SIZE["nbytes"], SIZE["seconds"], SIZE["largest_error"]),
    *(SIZE["algorithm_bytes_per_second"], SIZE["bus_bytes_per_second"]),
    Metric(
        key="n",
        kind="integer",
        meaning="Repetitions, each in fresh processes.",
        header="n",
        row=lambda size: size.seconds.sample_size,
    ),
)

LEAVE_FIRST = ("algorithm_bytes_per_second", "n", "bus_bytes_per_second")
"""Columns that leave where the table is too wide for a terminal."""


def stored_answer(stored: StoredCollectives, *, width: int | None = None) -> Answer:
    """A row for each collective, backend, group size and message size, with notes on environments;
    as data, seconds, bytes per second, and shares as fractions. As wide as stdout unless `width` is
    given."""
    found = measured(stored.records)
    notes = (*collective_notes(found), *environment_differences(stored))
    table = collectives_table(found).without_repeats(3)
    table, _ = fitted(table, LEAVE_FIRST, width)
    return Answer(
        paragraphs=(table if table.rows else "", bullets(notes, width)),
        data=[_plain(one) for one in found],
    )


def environment_differences(stored: StoredCollectives) -> tuple[str, ...]:
    """Notes on environments that differ."""
    return environment_notes(stored.records, stored.environments, noun="measurement")


def collectives_table(found: Sequence[MeasuredCollective]) -> Table:
    """A row for each collective, backend, number of ranks and size."""
    costs = [size for one in found for size in one.sizes]
    sizes = table_of(COLUMNS, costs)
    specs = [one.spec for one in found for _ in one.sizes]
    return Table(
        caption="Collectives by message size",
        has_controls=True,
        columns=(
            text_column("Collective"),
            text_column("Backend"),
            TableColumn(key="ranks", header="Ranks", meaning="Processes that take part."),
            *sizes.columns,
        ),
        rows=tuple(
            replace(
                row,
                cells=(
                    words(spec.collective),
                    words(spec.backend),
                    whole(spec.group_size),
                    *_certain(cost, row.cells),
                ),
            )
            for spec, cost, row in zip(specs, costs, sizes.rows, strict=True)
        ),
    )


def _certain(cost: SizeCost, cells: Sequence[TableCell]) -> Iterator[TableCell]:
    """The cells of a size; every number that follows from a time too noisy to state says so."""
    for metric, cell in zip(COLUMNS, cells, strict=True):
        is_noisy = cost.seconds.is_too_noisy and isinstance(metric.of_row(cost), Estimate)
        yield replace(cell, text=NOISY) if is_noisy else cell


def collective_notes(found: Sequence[MeasuredCollective]) -> Iterator[str]:
    """What failed and why, on what it ran, and how to read the table."""
    for one in found:
        for status, reason in dict.fromkeys(one.failures):
            count = units.counted(one.failures.count((status, reason)), "repetition")
            why = f": {one_line(reason)}" if reason else ""
            yield f"{one.spec.label}: {status.words} ({count}){why}"
        for reason in dict.fromkeys(one.tried_again_after):
            yield f"{one.spec.label}: retried after {one_line(reason)}"
    full = [one for one in found if one.sizes]
    if not full:
        return
    specs = [one.spec for one in full]
    devices = dict.fromkeys(device.partition(":")[0] for spec in specs for device in spec.devices)
    hosts = max(one.nodes for one in full)
    yield ", ".join(
        [
            *dict.fromkeys(str(spec.dtype) for spec in specs),
            f"{units.span([spec.threads_per_replica for spec in specs], 'thread')} per rank",
            *([f"{hosts} hosts"] if hosts > 1 else []),
            "/".join(devices),
        ]
    )
    repeated = units.span((s.seconds.sample_size for one in full for s in one.sizes), "repetition")
    yield (
        "time: one call on the slowest rank, as the median over samples and the geometric mean "
        f"over n = {repeated} with its 95 % t interval"
    )
    yield (
        "algbw: size ÷ time; busbw: algbw × the factor of nccl-tests, such as "
        "2 (ranks - 1) ÷ ranks for all_reduce; GB is 10⁹ bytes"
    )
    if any(size.seconds.is_too_noisy for one in full for size in one.sizes):
        yield (
            f"too noisy: intervals wider than a factor of {TOO_NOISY:g} are not printed; add "
            "--repetitions, or free the machine"
        )
    yield "every result was checked before it was timed"


def _plain(one: MeasuredCollective) -> dict[str, Any]:
    sizes = [{metric.key: metric.of_row(size) for metric in SIZE_METRICS} for size in one.sizes]
    return {
        "collective": one.spec.collective,
        "backend": one.spec.backend,
        "group_size": one.spec.group_size,
        "nodes": one.nodes,
        "dtype": one.spec.dtype,
        "threads_per_replica": one.spec.threads_per_replica,
        "repetitions": one.repetitions,
        "failures": [{"status": status.value, "reason": reason} for status, reason in one.failures],
        "sizes": [
            {
                key: plain_estimate(value) if isinstance(value, Estimate) else value
                for key, value in size.items()
            }
            for size in sizes
        ],
    }
