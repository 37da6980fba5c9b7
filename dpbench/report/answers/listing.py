"""`dpbench list` and `sweep --dry-run`: what can be measured, and what would be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from dpbench import units
from dpbench.report.answer import Answer
from dpbench.report.table import MISSING, Column, Table, column, text_column
from dpbench.specs import Configuration, Labels
from dpbench.specs.nodes import on_nodes


class NameEntry(NamedTuple):
    """A name that commands take."""

    kind: str
    name: str
    reason: str | None
    """Why it cannot be used here; None if it can."""
    description: str


class PlannedRow(NamedTuple):
    """A configuration of a sweep."""

    configuration: Configuration
    runs: int
    """Trials of it that are left."""
    reason: str | None
    """Why it is skipped; None if it is not."""


def names_answer(entries: Sequence[NameEntry]) -> Answer:
    """A row for each name if all are of one kind; else one for each kind, in which names that
    cannot be used here are in parentheses."""
    names: dict[str, list[str]] = {}
    for entry in entries:
        name = entry.name if entry.reason is None else f"({entry.name})"
        names.setdefault(entry.kind, []).append(name)
    if len(names) == 1:
        columns: tuple[Column, ...] = (
            text_column("Name", [entry.name for entry in entries]),
            text_column("Usable", ["no" if entry.reason else "yes" for entry in entries]),
            text_column("What", [e.reason or e.description for e in entries], folds=True),
        )
        more = ""
    else:
        columns = (
            text_column("Kind", names),
            text_column("Names", map(", ".join, names.values()), folds=True),
        )
        more = "(…): cannot be used here. dpbench list KIND has descriptions, options and reasons."
    data = [entry._asdict() for entry in entries]
    return Answer(paragraphs=(Table(columns=columns), more), data=data)


def plan_answer(rows: Sequence[PlannedRow], summary: str) -> Answer:
    """A row for each configuration of a sweep; people get reasons and the summary below it."""
    specs = [row.configuration for row in rows]
    labels = Labels.among(specs)
    reasons = Counter(row.reason for row in rows if row.reason)
    batches = [str(spec.global_batch_size or MISSING) for spec in specs]
    columns = (
        text_column("Implementation", map(labels.implementation, specs)),
        text_column("Backend", [spec.backend for spec in specs]),
        column("Size", [f"{spec.group_size}{on_nodes(spec.replicas_by_node)}" for spec in specs]),
        column("Batch", [str(spec.batch_size or MISSING) for spec in specs]),
        column("Global batch", batches, leaves=2),
        text_column("Devices", [", ".join(spec.devices) for spec in specs], leaves=1),
        column("Runs", ["skip" if row.reason else str(row.runs) for row in rows]),
    )
    notes = [f"{units.counted(count, 'row')} skipped: {why}" for why, count in reasons.items()]
    return Answer(
        paragraphs=(Table(columns=columns), notes, summary),
        data=[
            {
                "label": labels.label(spec),
                "implementation": spec.implementation,
                "backend": spec.backend,
                "group_size": spec.group_size,
                "batch_size": spec.batch_size,
                "global_batch_size": spec.global_batch_size or None,
                "nodes": list(spec.replicas_by_node),
                "devices": list(spec.devices),
                "runs": row.runs,
                "reason": row.reason,
            }
            for spec, row in zip(specs, rows, strict=True)
        ],
    )
