"""Rows of a sweep in the columns of the published tables, with the environment as their source."""

from __future__ import annotations

from dpbench.analysis.subject import Subject
from dpbench.errors import UsageError
from dpbench.records.environment import environment_line
from dpbench.report.exports import csv_text
from dpbench.specs.traits import SINGLE


def submission(subject: Subject) -> str:
    """The rows that have a speed as CSV, to be added to a file of `results/published/`.

    Raises UsageError for a published table, for strong scaling, and if no row has a speed.
    """
    import pandas as pd

    sweep = subject.sweep
    if sweep is None:
        raise UsageError(f"{subject.name}: --format submission needs a sweep's results folder")
    machine = environment_line(
        sweep.environments, {record.environment_id for record in sweep.records}
    )
    accelerators = {len(one.accelerators) for one in sweep.environments.values()}
    lines = []
    for row in subject.rows:
        trial = row.trial
        if trial is None or row.throughput is None:
            continue
        if trial.scaling == "strong":
            raise UsageError(
                f"{subject.name}: published tables have a fixed batch per replica; "
                "--format submission takes no strong scaling"
            )
        # Readers find by its name what the speedups of other rows are relative to.
        name = f"{trial.workload.architecture} {row.implementation_label}"
        on_gpus = trial.devices[0].startswith("cuda") and len(accelerators) == 1
        lines.append(
            {
                "source": machine,
                "implementation": row.implementation if row.implementation == SINGLE else name,
                "backend": row.backend,
                "batch_per_gpu": row.batch_size,
                "scaling": "weak",
                "gpus_per_node": next(iter(accelerators)) if on_gpus else None,
                "gpus": row.group_size,
                "images_per_second": round(row.throughput.value, 3),
                "item": row.item,
            }
        )
    if not lines:
        raise UsageError(f"{subject.name}: no row has a speed")
    frame = pd.DataFrame(lines).astype({"gpus_per_node": "Int64", "batch_per_gpu": "Int64"})
    return csv_text(frame)
