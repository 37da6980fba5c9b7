"""Text and JSON of `--dry-run`: what a sweep and `dpbench comm` would measure, or skip."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from dpbench import units
from dpbench.records.collectives import CollectiveSpec
from dpbench.report.answer import Answer, bullets
from dpbench.report.table import text_table
from dpbench.specs import TrialSpec
from dpbench.specs.shares import on_hosts

Spec = TypeVar("Spec", TrialSpec, CollectiveSpec)


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned(Generic[Spec]):
    """One configuration of a plan."""

    spec: Spec
    runs: int
    """How often it is measured; 0 if it is skipped."""
    reason: str | None
    """Why it is skipped; None if it is measured."""


def sweep_answer(rows: Sequence[Planned[TrialSpec]], summary: str, *, width: int) -> Answer:
    """A row for each configuration of a sweep; people get the summary below it."""
    headers = ("Implementation", "Backend", "Group", "Batch", "Global batch", "Devices", "Runs")
    cells = [
        [
            row.spec.implementation_label,
            str(row.spec.backend),
            f"{row.spec.group_size}{on_hosts(row.spec.nodes)}",
            str(row.spec.batch_size),
            str(row.spec.global_batch_size),
            ", ".join(row.spec.devices),
            f"skip: {row.reason}" if row.reason else str(row.runs),
        ]
        for row in rows
    ]
    return Answer(
        paragraphs=(
            text_table(headers, cells, words=("Implementation", "Backend", "Devices")),
            textwrap.fill(summary, width, break_on_hyphens=False),
        ),
        data=[
            {
                "implementation": row.spec.implementation_label,
                "backend": row.spec.backend,
                "group_size": row.spec.group_size,
                "batch_size": row.spec.batch_size,
                "global_batch_size": row.spec.global_batch_size,
                "devices": list(row.spec.devices),
                "nodes": list(row.spec.nodes),
                "runs": row.runs,
                "reason": row.reason,
            }
            for row in rows
        ],
    )


def collectives_answer(rows: Sequence[Planned[CollectiveSpec]]) -> Answer:
    """A row for each collective, backend and group; notes name further measurements, and reasons
    for what is skipped."""
    headers = ("Collective", "Backend", "Group", "Sizes", "Devices", "Runs")
    cells = [
        [
            row.spec.collective,
            row.spec.backend,
            str(row.spec.group_size),
            _sizes(row.spec.sizes_bytes),
            ", ".join(row.spec.devices),
            "skipped" if row.reason else f"{row.runs:,}",
        ]
        for row in rows
    ]
    return Answer(
        paragraphs=(
            text_table(headers, cells, words=("Collective", "Backend", "Sizes", "Devices")),
            bullets(_collective_notes(rows)),
        ),
        data=[
            {
                "collective": row.spec.collective,
                "backend": row.spec.backend,
                "group_size": row.spec.group_size,
                "sizes_bytes": list(row.spec.sizes_bytes),
                "devices": list(row.spec.devices),
                "runs": row.runs,
                "reason": row.reason,
            }
            for row in rows
        ],
    )


def _collective_notes(rows: Sequence[Planned[CollectiveSpec]]) -> Iterator[str]:
    for row in rows:
        if row.reason:
            spec = row.spec
            yield f"{spec.collective} on {spec.backend} ×{spec.group_size}: {row.reason}"


def _sizes(sizes: Sequence[int]) -> str:
    first, last = units.bytes_exact(sizes[0]), units.bytes_exact(sizes[-1])
    return first if len(sizes) == 1 else f"{len(sizes)} sizes, {first} to {last}"
