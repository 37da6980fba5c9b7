"""Text and JSON of `--dry-run`: what a sweep and `dpbench comm` would measure, or skip."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from dpbench import units
from dpbench.records.collectives import CollectiveSpec
from dpbench.report.answer import Answer, bullets
from dpbench.report.table import text_table
from dpbench.report.terminal import filled, fitted
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

    @property
    def outcome(self) -> dict[str, object]:
        """The part of the data that all plans have."""
        return {"devices": list(self.spec.devices), "runs": self.runs, "reason": self.reason}


def sweep_answer(rows: Sequence[Planned[TrialSpec]], summary: str) -> Answer:
    """A row for each configuration of a sweep; people get reasons and the summary below it."""
    data = [
        {
            "implementation": row.spec.implementation_label,
            "backend": row.spec.backend,
            "group_size": row.spec.group_size,
            "batch_size": row.spec.batch_size,
            "global_batch_size": row.spec.global_batch_size,
            "nodes": list(row.spec.nodes),
            **row.outcome,
        }
        for row in rows
    ]
    headers = ("Implementation", "Backend", "Group", "Batch", "Global batch", "Devices", "Runs")
    cells = [
        [
            str(one["implementation"]),
            str(one["backend"]),
            f"{one['group_size']}{on_hosts(row.spec.nodes)}",
            str(one["batch_size"]),
            str(one["global_batch_size"]),
            ", ".join(row.spec.devices),
            "skip" if row.reason else str(row.runs),
        ]
        for row, one in zip(rows, data, strict=True)
    ]
    table = text_table(headers, cells, words=("Implementation", "Backend", "Devices"))
    table, _ = fitted(table, ("Devices", "Global batch"))
    reasons = Counter(row.reason for row in rows if row.reason)
    notes = [f"{units.counted(count, 'row')} skipped: {why}" for why, count in reasons.items()]
    return Answer(paragraphs=(table, bullets(notes), filled(summary)), data=data)


def collectives_answer(rows: Sequence[Planned[CollectiveSpec]]) -> Answer:
    """A row for each collective, backend and group, and the reasons for what is skipped."""
    headers = ("Collective", "Backend", "Group", "Sizes", "Devices", "Runs")
    cells, data, notes = [], [], []
    for row in rows:
        spec = row.spec
        sizes = [units.bytes_exact(size) for size in spec.sizes_bytes]
        span = sizes[0] if len(sizes) == 1 else f"{len(sizes)} sizes, {sizes[0]} to {sizes[-1]}"
        runs = "skipped" if row.reason else f"{row.runs:,}"
        devices = ", ".join(spec.devices)
        cells.append([spec.collective, spec.backend, str(spec.group_size), span, devices, runs])
        data.append(
            {
                "collective": spec.collective,
                "backend": spec.backend,
                "group_size": spec.group_size,
                "sizes_bytes": list(spec.sizes_bytes),
                **row.outcome,
            }
        )
        if row.reason:
            notes.append(f"{spec.collective} on {spec.backend} ×{spec.group_size}: {row.reason}")
    table = text_table(headers, cells, words=("Collective", "Backend", "Sizes", "Devices"))
    table, _ = fitted(table, ("Devices", "Sizes"))
    return Answer(paragraphs=(table, bullets(notes)), data=data)
