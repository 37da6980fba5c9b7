"""A sweep once its options are right: planned or measured, on this node alone or over several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from dpbench import units
from dpbench.grid import plan
from dpbench.records import Status, TrialRecord
from dpbench.run.sweep.estimate import FEWEST_STEPS, estimate_seconds
from dpbench.run.sweep.measuring import launcher_for
from dpbench.run.sweep.nodes import Nodes
from dpbench.run.sweep.preparation import PreparedSweep, SweepRequest, find_place, prepare
from dpbench.specs import SweepSpec, TrialSpec
from dpbench.store import StoredSweep
from dpbench.temporary import temporary_folder

FAILURES = (Status.FAILED, Status.OUT_OF_MEMORY, Status.TIMED_OUT, Status.DIVERGED)


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepPlan:
    """The plan of a sweep."""

    rows: tuple[dict[str, object], ...]
    """A row per configuration, in the order of their first run; those to be skipped say why."""
    summary: str


def measure_sweep(request: SweepRequest, nodes: Nodes | None) -> StoredSweep:
    """Runs the sweep; raises Interrupted, with what was stored, when a signal ends it."""
    if nodes is not None:
        from dpbench.run.sweep.several_nodes import lead_sweep

        return lead_sweep(request, nodes)
    return prepare(request, find_place(request)).measure()


def plan_sweep(request: SweepRequest, nodes: Nodes | None) -> SweepPlan:
    """Says what the sweep would measure and how long that may take; nothing is stored."""
    if nodes is not None:
        from dpbench.run.sweep.several_nodes import prepare_for_nodes

        return _planned(prepare_for_nodes(request, nodes))
    return _planned(prepare(request, find_place(request, may_exist=True)))


def _planned(prepared: PreparedSweep) -> SweepPlan:
    spec = prepared.measurement.spec
    trials = plan(spec)
    with (
        temporary_folder() as logs,
        launcher_for(prepared.measurement, prepared.machine, logs) as launcher,
    ):
        configurations = dict.fromkeys(trial.configuration for trial in trials)
        reasons = {trial: launcher.unusable_reason(trial) for trial in configurations}
        runs = [trial for trial in trials if not reasons[trial.configuration]]
        threads = [trial.threads_per_replica for trial in trials]
        summary = (
            f"{units.counted(len(runs), 'trial')} of {_steps(spec, trials)} steps, "
            f"{units.any_of(threads, 'thread')} per replica; "
            f"{estimate_seconds(runs, launcher)}{_growth(spec)}. Nothing was stored."
        )
    rows = tuple(_row(trial, spec.repetitions, reason) for trial, reason in reasons.items())
    return SweepPlan(rows=rows, summary=summary)


def _steps(spec: SweepSpec, trials: Sequence[TrialSpec]) -> str:
    warmup = _any_of(trial.warmup_steps for trial in trials)
    if spec.steps_grow:
        return f"{warmup} + {FEWEST_STEPS} to {spec.timed_steps:,}"
    return f"{warmup} + {_any_of(trial.timed_steps for trial in trials)}"


def _any_of(counts: Iterable[int]) -> str:
    """Several in brackets, as a term of a sum."""
    words = units.any_of(counts)
    return words if words.isdigit() else f"({words})"


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


def exit_status(records: Sequence[TrialRecord], asked: Collection[str] | None = None) -> int:
    """6 for wrong gradients before 1 for a failure, or for trials that a lost node left over.

    It is 1 as well if nothing completed of the implementations that were `asked` for: the baseline
    alone, which every sweep measures, is no answer.
    """
    from dpbench.analysis.configuration import by_configuration, effective_status

    counted = [record for group in by_configuration(records).values() for record in group]
    statuses = Counter(effective_status(record) for record in counted)
    if statuses[Status.WRONG_GRADIENTS]:
        return 6
    failed = any(statuses[status] for status in FAILURES)
    left_over = any(record.lost_host is not None for record in counted)
    answered = any(
        effective_status(record) is Status.COMPLETED
        and (asked is None or record.trial.implementation in asked)
        for record in counted
    )
    return 1 if failed or left_over or not answered else 0
