"""Text and JSON of `--dry-run`: what a sweep would measure, or skip."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dpbench import units
from dpbench.report.answer import Answer
from dpbench.report.table import MISSING, Table, column, text_column
from dpbench.specs import Labels, TrialSpec
from dpbench.specs.shares import on_hosts


def plan_answer(planned: Sequence[tuple[TrialSpec, int, str | None]], summary: str) -> Answer:
    """A row for each configuration of a sweep, how many trials of it are left, and why it is
    skipped; people get reasons and the summary below it."""
    specs = [spec for spec, _, _ in planned]
    labels = Labels.among(specs)
    reasons = Counter(reason for _, _, reason in planned if reason)
    return Answer(
        paragraphs=(
            Table(
                columns=(
                    text_column("Implementation", map(labels.implementation, specs)),
                    text_column("Backend", [spec.backend for spec in specs]),
                    column("Size", [f"{spec.group_size}{on_hosts(spec.nodes)}" for spec in specs]),
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
            [f"{units.counted(count, 'row')} skipped: {why}" for why, count in reasons.items()],
            summary,
        ),
        data=[
            {
                "label": labels.configuration(spec),
                "implementation": spec.implementation,
                "backend": spec.backend,
                "group_size": spec.group_size,
                "batch_size": spec.batch_size or None,
                "global_batch_size": spec.global_batch_size or None,
                "nodes": list(spec.nodes),
                "devices": list(spec.devices),
                "runs": runs,
                "reason": reason,
            }
            for spec, runs, reason in planned
        ],
    )
