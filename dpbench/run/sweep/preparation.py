"""Prepares a sweep from its options: its folder, its plan, and what is stored of it.

The command line and `dpbench.sweep` both go through here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dpbench import store, units
from dpbench.architecture import LONGEST_FOLDER_NAME, folder_name
from dpbench.launch.machine import Machine
from dpbench.messages import say, warn
from dpbench.options.shared import LARGEST
from dpbench.options.sweep import SweepOptions
from dpbench.records.trial import Status, TrialRecord
from dpbench.run.results import results_folder
from dpbench.run.sweep.grid import missing, plan_trials
from dpbench.run.sweep.measuring import (
    Measurement,
    estimate_in_words,
    launcher_for,
    measure,
    unusable_rows,
)
from dpbench.run.sweep.resume import check_resumable, finishing_command, lasting
from dpbench.run.sweep.spec import build_sweep_spec
from dpbench.run.this_machine import machine_here
from dpbench.specs import SweepSpec, TrialSpec
from dpbench.specs.trial import MOST_FILLING_STEPS
from dpbench.store import StoredSweep
from dpbench.temporary import temporary_folder

if TYPE_CHECKING:
    from dpbench.launch.nodes import Team
    from dpbench.launch.placement import NodeRequest

FIRST_BATCH = 1
"""The batch size of a plan in which only `max` is asked for."""
FAILURES = (Status.FAILED, Status.OUT_OF_MEMORY, Status.TIMED_OUT, Status.DIVERGED)
"""Statuses with which a sweep ends with exit status 1."""


class Planned(NamedTuple):
    """One configuration of a plan."""

    spec: TrialSpec
    runs: int
    """Number of its trials that are left; 0 if it is skipped."""
    reason: str | None
    """Why it is skipped; None if it is measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedSweep:
    """A sweep that this machine can measure."""

    measurement: Measurement
    machine: Machine
    earlier: StoredSweep | None
    """The sweep that --resume found."""

    def measure(self) -> StoredSweep:
        """Run the trials that are not stored yet; raises what `measuring.measure` raises."""
        rounds = partial(missing, plan_trials(self.measurement.spec))
        return measure(self.measurement, self.machine, rounds)


def find_folder(options: SweepOptions) -> tuple[Path, StoredSweep | None]:
    """The folder of a sweep, and the sweep that --resume finds in it. Raises StoreError for a new
    folder that already exists, or a missing one to resume."""
    names = options.arch if options.script is None else (Path(options.script).name,)
    named = "-".join(map(folder_name, names))[:LONGEST_FOLDER_NAME]
    folder = results_folder(options.results_dir, options.name, otherwise=named)
    if options.resume:
        return folder, store.load(folder)
    store.require_free(folder)
    return folder, None


def prepare(
    options: SweepOptions,
    folder: Path,
    earlier: StoredSweep | None,
    *,
    embedded: bool = False,
    team: Team | None = None,
) -> PreparedSweep:
    """Prepare a sweep, over the nodes of a `team` if there is one.

    `embedded` leaves the signal handlers of the calling program alone. Raises UsageError if the
    machines cannot measure the sweep, or if it is not the one to resume.
    """
    machine = machine_here()
    if team is None and options.searches_batch:
        from dpbench.run.sweep.largest_batch import with_largest

        options = with_largest(options, machine)
    spec, notes = build_sweep_spec(options, machine, () if team is None else team.nodes)
    if earlier is not None:
        warn(*earlier.warnings)
        check_resumable(earlier, spec)
    measurement = Measurement(
        spec=spec,
        folder=folder,
        command=["sweep", *options.words()],
        data_dir=options.data_dir,
        quiet=options.quiet,
        resumed=options.resume,
        stop_after_failure=options.stop_after_failure,
        to_finish=how_to_finish(options, folder, team),
        notes=notes,
        embedded=embedded,
        team=team,
    )
    return PreparedSweep(measurement=measurement, machine=machine, earlier=earlier)


def how_to_finish(options: SweepOptions, folder: Path, team: Team | None = None) -> str:
    """The command that finishes the sweep, and where to type it."""
    script = () if options.script is None else (options.script, *options.arguments)
    command = finishing_command(["sweep", *options.words()], script, folder)
    return f"on every node, as before: {command}" if team else command


def measure_sweep(
    options: SweepOptions, nodes: NodeRequest | None = None, *, embedded: bool = False
) -> StoredSweep:
    """Run the sweep, for the command and for `dpbench.sweep`, which is `embedded` in a program.

    Raises Interrupted, whose message says what is stored, if a signal ends the sweep.
    """
    if nodes is not None:
        from dpbench.run.sweep.several_nodes import measure_over_nodes

        return measure_over_nodes(options, nodes)
    return prepare(options, *find_folder(options), embedded=embedded).measure()


def plan_sweep(options: SweepOptions) -> tuple[list[Planned], str]:
    """The rows that the sweep would measure, in the order of their first run, and a summary with
    an estimate of its time; nothing is stored. With --resume only what is left counts.

    Raises what a run would raise before its first trial, except that a plan may have more replicas
    than this machine has devices.
    """
    largest = ""
    if options.searches_batch:
        from dpbench.run.sweep.largest_batch import require_one_answer

        require_one_answer(options)
        known = options.known_batch_sizes
        here = "its rows are not in this plan" if known else f"batch {FIRST_BATCH} stands in for it"
        largest = f" --batch-sizes {LARGEST} is found when the sweep starts: {here}."
        options = options.model_copy(update={"batch_sizes": known or (FIRST_BATCH,)})
    widened = options.model_copy(update={"oversubscribe": True})
    prepared = prepare(widened, *find_folder(options))
    rows, summary = _planned(prepared, oversubscribe=options.oversubscribe)
    return rows, summary + largest


def _planned(prepared: PreparedSweep, *, oversubscribe: bool) -> tuple[list[Planned], str]:
    spec, machine = prepared.measurement.spec, prepared.machine
    there_are = machine.gpu_count if machine.has_cuda else machine.cores
    if machine.has_cuda and len(spec.devices) > there_are and not oversubscribe:
        # Each replica has a GPU of its own where the plan is to be run.
        spec = replace(spec, devices=tuple(f"cuda:{n}" for n in range(len(spec.devices))))
    trials = plan_trials(spec)
    with (
        temporary_folder() as logs,
        launcher_for(prepared.measurement, prepared.machine, logs) as launcher,
    ):
        reasons = unusable_rows(spec, launcher)
        say(*prepared.measurement.notes)
        usable = [trial for trial in trials if trial.configuration not in reasons]
        runs = missing(usable, lasting(prepared.earlier.records) if prepared.earlier else ())
        threads = [trial.threads_per_replica for trial in trials]
        duration = (
            "no estimate, as a plan does not start the script"
            if spec.workload.script
            else f"no estimate, as {len(spec.devices)} replicas share "
            f"{units.counted(there_are, 'GPU' if machine.has_cuda else 'core')}"
            if len(spec.devices) > there_are
            else estimate_in_words(runs, launcher)
        )
        needs = "" if oversubscribe else _needs(spec, trials, machine)
        stored = f"Resuming: {units.stored(len(usable) - len(runs), len(usable))}. "
        summary = (
            f"{stored if prepared.earlier else ''}{units.counted(len(runs), 'trial')} "
            f"of {_steps(spec, trials)}, "
            f"{units.any_of(threads, 'thread')} per replica; "
            f"{duration}. {needs}This plan stored nothing."
        )
    left = Counter(trial.configuration for trial in runs)
    rows = [
        Planned(spec=row, runs=left[row], reason=reasons.get(row))
        for row in dict.fromkeys(trial.configuration for trial in trials)
    ]
    return rows, summary


def _needs(spec: SweepSpec, trials: Sequence[TrialSpec], machine: Machine) -> str:
    """Sentence on what a run needs and this machine lacks; "" if it has enough."""
    replicas, threads = len(spec.devices), max(trial.threads_per_replica for trial in trials)
    if machine.has_cuda and replicas > machine.gpu_count:
        needed, unit, there_are = replicas, "GPU", machine.gpu_count
    else:
        needed = max(replicas, threads * max(spec.group_sizes))
        unit, there_are = "core", machine.cores
    if needed <= there_are:
        return ""
    return f"A run needs {units.counted(needed, unit)}, or --oversubscribe. "


def _steps(spec: SweepSpec, trials: Sequence[TrialSpec]) -> str:
    warmup = units.any_of(trial.warmup_steps for trial in trials)
    timed = units.any_of(trial.timed_steps for trial in trials)
    if spec.window_seconds is not None:
        timed = f"{spec.timed_steps} to {MOST_FILLING_STEPS:,}"
    return f"{warmup} warm-up and {timed} timed steps"


def exit_status(records: Sequence[TrialRecord], asked: Collection[str] | None = None) -> int:
    """6 for wrong gradients before 1 for a failure, or for trials that a lost node left over.

    It is 1 as well if nothing completed of the implementations that were `asked` for: the baseline
    alone, which every sweep measures, is no answer.
    """
    from dpbench.analysis.repetitions import by_configuration

    counted = [record for group in by_configuration(records).values() for record in group]
    statuses = Counter(record.status for record in counted)
    if statuses[Status.WRONG_GRADIENTS]:
        return 6
    failed = any(statuses[status] for status in FAILURES)
    left_over = any(record.lost_host is not None for record in counted)
    answered = any(
        record.status is Status.COMPLETED
        and (asked is None or record.trial.implementation in asked)
        for record in counted
    )
    return 1 if failed or left_over or not answered else 0
