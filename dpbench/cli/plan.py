"""What `dpbench sweep --dry-run` prints: the rows to come, and how long they may take."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Sequence

from dpbench import units
from dpbench.cli.estimate import FEWEST_STEPS, estimate_seconds
from dpbench.cli.terminal import table_width
from dpbench.launch.launcher import Launcher
from dpbench.placement import on_hosts
from dpbench.specs import SweepSpec, TrialSpec

HEADERS = {
    "implementation": "Implementation",
    "backend": "Backend",
    "group_size": "Group",
    "batch_size": "Batch",
    "global_batch_size": "Global batch",
    "devices": "Devices",
    "runs": "Runs",
}
WORDS = ("Implementation", "Backend", "Devices")
"""Columns that are aligned left."""


def show_plan(
    trials: Sequence[TrialSpec], spec: SweepSpec, launcher: Launcher, *, as_json: bool
) -> int:
    """Prints the configurations in the order of their first run, and what will be skipped."""
    configurations = dict.fromkeys(trial.configuration for trial in trials)
    reasons = {trial: launcher.unusable_reason(trial) for trial in configurations}
    rows = [_row(trial, spec.repetitions, reason) for trial, reason in reasons.items()]
    runs = [trial for trial in trials if not reasons[trial.configuration]]
    summary = (
        f"{units.counted(len(runs), 'trial')} of {_steps(spec)} steps, "
        f"{units.counted(spec.threads_per_replica, 'thread')} per replica; "
        f"{estimate_seconds(runs, launcher)}{_growth(spec)}. Nothing was stored."
    )
    if as_json:
        print(json.dumps(rows, indent=1))
        print(f"dpbench: {summary}", file=sys.stderr)
    else:
        print(_table(rows))
        print(f"\n{textwrap.fill(summary, table_width(), break_on_hyphens=False)}")
    return 0


def _steps(spec: SweepSpec) -> str:
    timed = f"{FEWEST_STEPS} to {spec.timed_steps:,}" if spec.steps_grow else spec.timed_steps
    return f"{spec.warmup_steps} + {timed}"


def _growth(spec: SweepSpec) -> str:
    if spec.precision is None or spec.budget_seconds is None:
        return ""
    return (
        " at least; repetitions are added up to --precision "
        f"{units.exact_percent(spec.precision)} or --budget {units.seconds(spec.budget_seconds)}"
    )


def _row(trial: TrialSpec, repetitions: int, reason: str | None) -> dict[str, object]:
    return {
        "implementation": trial.implementation_label,
        "backend": trial.backend,
        "group_size": trial.group_size,
        "batch_size": trial.batch_size,
        "global_batch_size": trial.global_batch_size,
        "devices": list(trial.devices),
        "nodes": list(trial.nodes),
        "runs": 0 if reason else repetitions,
        "reason": reason,
    }


def _table(rows: Sequence[dict[str, object]]) -> str:
    from dpbench.report.table import text_table
    from dpbench.report.terminal import write_table

    cells = []
    for row in rows:
        texts = {key: str(row[key]) for key in HEADERS}
        texts["devices"] = ", ".join(row["devices"])  # type: ignore[arg-type]
        texts["group_size"] += on_hosts(row["nodes"])  # type: ignore[arg-type]
        if row["reason"]:
            texts["runs"] = f"skip: {row['reason']}"
        cells.append([*texts.values()])
    return write_table(text_table([*HEADERS.values()], cells, words=WORDS))
