"""`dpbench list` and `sweep --dry-run`: what can be measured, what was measured, and what would
be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from dpbench import units
from dpbench.report.answer import Answer
from dpbench.report.table import MISSING, Column, Table, column, text_column
from dpbench.specs import Configuration, Labels
from dpbench.specs.nodes import on_nodes
from dpbench.specs.traits import IMPLEMENTATIONS

ALONE = (
    "size 1 of each implementation shows what it costs one replica; --group-sizes without 1 leaves "
    "it out"
)
Listed = tuple[str, str, str | None, str]
"""Kind and name that commands take; why it cannot be used here, None if it can; description."""
ListedFolder = tuple[Path, str, int, str, str]
"""Folder, start of its first trial in ISO 8601 ("" for none), rows, status, hardware."""


def names_answer(rows: Sequence[Listed]) -> Answer:
    """A row for each name if all are of one kind; else one for each kind, in which names that
    cannot be used here are in parentheses."""
    names: dict[str, list[str]] = {}
    for kind, name, reason, _ in rows:
        names.setdefault(kind, []).append(name if reason is None else f"({name})")
    if len(names) == 1:
        columns: tuple[Column, ...] = (
            text_column("Name", [name for _, name, _, _ in rows]),
            text_column("Usable", ["no" if reason else "yes" for _, _, reason, _ in rows]),
            text_column("What", [reason or text for *_, reason, text in rows], folds=True),
        )
        more = ""
    else:
        columns = (
            text_column("Kind", names),
            text_column("Names", map(", ".join, names.values()), folds=True),
        )
        more = "(…): cannot be used here. dpbench list KIND has descriptions, options and reasons."
    keys = ("kind", "name", "reason", "description")
    data = [dict(zip(keys, row, strict=True)) for row in rows]
    return Answer(paragraphs=(Table(columns=columns), more), data=data)


def results_answer(found: Sequence[ListedFolder]) -> Answer:
    """A row for each results folder."""
    keys = ("folder", "started_utc", "rows", "status", "hardware")
    return Answer(
        paragraphs=(
            Table(
                columns=(
                    text_column("Folder", [str(folder) for folder, *_ in found]),
                    text_column(
                        "Date (UTC)",
                        [started[:16].replace("T", " ") for _, started, *_ in found],
                        folds=True,
                    ),
                    column("Rows", [f"{rows:,}" for _, _, rows, _, _ in found]),
                    text_column("Status", [status for *_, status, _ in found], folds=True),
                    text_column("Hardware", [hardware for *_, hardware in found], folds=True),
                )
            ),
        ),
        data=[dict(zip(keys, (str(row[0]), *row[1:]), strict=True)) for row in found],
    )


def plan_answer(planned: Sequence[tuple[Configuration, int, str | None]], summary: str) -> Answer:
    """A row for each configuration of a sweep, how many trials of it are left, and why it is
    skipped; people get reasons and the summary below it."""
    specs = [spec for spec, _, _ in planned]
    labels = Labels.among(specs)
    reasons = Counter(reason for _, _, reason in planned if reason)
    sizes = {one.group_size for one in specs if IMPLEMENTATIONS[one.implementation].communicates}
    return Answer(
        paragraphs=(
            Table(
                columns=(
                    text_column("Implementation", map(labels.implementation, specs)),
                    text_column("Backend", [spec.backend for spec in specs]),
                    column(
                        "Size",
                        [f"{one.group_size}{on_nodes(one.replicas_by_node)}" for one in specs],
                    ),
                    column("Batch", [str(spec.batch_size or MISSING) for spec in specs]),
                    column(
                        "Global batch",
                        [str(spec.global_batch_size or MISSING) for spec in specs],
                        leaves=2,
                    ),
                    text_column("Devices", [", ".join(spec.devices) for spec in specs], leaves=1),
                    column("Runs", ["skip" if why else str(runs) for _, runs, why in planned]),
                )
            ),
            [f"{units.counted(count, 'row')} skipped: {why}" for why, count in reasons.items()]
            + [ALONE] * (1 in sizes and len(sizes) > 1),
            summary,
        ),
        data=[
            {
                "label": labels.label(spec),
                "implementation": spec.implementation,
                "backend": spec.backend,
                "group_size": spec.group_size,
                "batch_size": spec.batch_size or None,
                "global_batch_size": spec.global_batch_size or None,
                "nodes": list(spec.replicas_by_node),
                "devices": list(spec.devices),
                "runs": runs,
                "reason": reason,
            }
            for spec, runs, reason in planned
        ],
    )
