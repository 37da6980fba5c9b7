"""Text and JSON of `dpbench comm`: one table in the terms of nccl-tests, with intervals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from dpbench import units
from dpbench.analysis.collectives import (
    SIZE_METRICS,
    MeasuredCollective,
    SizeCost,
    measured,
)
from dpbench.analysis.comparisons.comparability import environment_notes
from dpbench.analysis.estimate import TOO_NOISY, Estimate
from dpbench.analysis.metric import Metric
from dpbench.messages import one_line
from dpbench.report.answer import Answer, plain_estimate
from dpbench.report.numbers import NOISY, cell, metric_column
from dpbench.report.table import Table, column, text_column
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

LEAVE = ("algorithm_bytes_per_second", "n", "bus_bytes_per_second")
"""Columns that leave where the table is too wide for a terminal, in their order."""


def stored_answer(stored: StoredCollectives) -> Answer:
    """A row for each collective, backend, group size and message size, with notes on environments;
    as data, seconds, bytes per second, and shares as fractions."""
    found = measured(stored.records)
    return Answer(
        paragraphs=(
            collectives_table(found),
            [*collective_notes(stored)],
        ),
        data=[_plain(one) for one in found],
    )


def collectives_table(found: Sequence[MeasuredCollective]) -> Table:
    """A row for each collective, backend, number of ranks and size. Every number that follows from
    a time too noisy to state says so."""
    rows = [(one.spec, size) for one in found for size in one.sizes]
    costs = [size for _, size in rows]

    def text(metric: Metric, cost: SizeCost) -> str:
        is_noisy = cost.seconds.is_too_noisy and isinstance(metric.of_row(cost), Estimate)
        return NOISY if is_noisy else cell(metric, cost)

    shown = (metric_column(one, costs, [text(one, cost) for cost in costs]) for one in COLUMNS)
    return Table(
        caption="Collectives by message size",
        has_controls=True,
        groups=3,
        columns=(
            text_column("Collective", [spec.collective for spec, _ in rows]),
            text_column("Backend", [spec.backend for spec, _ in rows]),
            column(
                "Ranks",
                [str(spec.group_size) for spec, _ in rows],
                meaning="Processes that take part.",
            ),
            *(
                replace(one, leaves=LEAVE.index(one.key) + 1 if one.key in LEAVE else 0)
                for one in shown
            ),
        ),
    )


def collective_notes(stored: StoredCollectives) -> Iterator[str]:
    """What failed and why, on what it ran, how to read the table, and environments that differ."""
    found = measured(stored.records)
    for one in found:
        for status, reason in dict.fromkeys(one.failures):
            count = units.counted(one.failures.count((status, reason)), "repetition")
            why = f": {one_line(reason)}" if reason else ""
            yield f"{one.spec.label}: {status.words} ({count}){why}"
        for reason in dict.fromkeys(one.tried_again_after):
            yield f"{one.spec.label}: retried after {one_line(reason)}"
    if full := [one for one in found if one.sizes]:
        yield from _reading(full)
    yield from environment_notes(stored.records, stored.environments, noun="measurement")


def _reading(full: Sequence[MeasuredCollective]) -> Iterator[str]:
    """On what the measured collectives ran, and how to read their numbers."""
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
