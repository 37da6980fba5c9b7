"""Text and JSON of `--dry-run`: what a sweep would measure, or skip."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dpbench import units
from dpbench.report.answer import Answer, bullets
from dpbench.report.table import text_table
from dpbench.report.terminal import filled, fitted
from dpbench.specs import Labels, TrialSpec
from dpbench.specs.shares import on_hosts


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """One configuration of a plan."""

    spec: TrialSpec
    runs: int
    """How many trials of it are left; 0 if it is skipped."""
    reason: str | None
    """Why it is skipped; None if it is measured."""


def sweep_answer(rows: Sequence[Planned], summary: str) -> Answer:
    """A row for each configuration of a sweep; people get reasons and the summary below it."""
    labels = Labels.among(row.spec for row in rows)
    data = [
        {
            "label": labels.configuration(row.spec),
            "implementation": row.spec.implementation,
            "backend": row.spec.backend,
            "group_size": row.spec.group_size,
            "batch_size": row.spec.batch_size,
            "global_batch_size": row.spec.global_batch_size,
            "nodes": list(row.spec.nodes),
            "devices": list(row.spec.devices),
            "runs": row.runs,
            "reason": row.reason,
        }
        for row in rows
    ]
    headers = ("Implementation", "Backend", "Size", "Batch", "Global batch", "Devices", "Runs")
    cells = [
        [
            labels.implementation(row.spec),
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
