"""`--dry-run`: the configurations that a sweep would measure, and an estimate of its time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from time import monotonic

from dpbench import units
from dpbench.launch.launcher import Launcher
from dpbench.records.trial import Status
from dpbench.report.answers.listing import PlannedRow
from dpbench.run.sweep.measuring import lasting, launcher_for, unusable_configurations
from dpbench.run.sweep.plan import SweepPlan
from dpbench.specs import TrialSpec, plain_label
from dpbench.specs.configuration import MAX_FILLING_STEPS
from dpbench.store.unfinished import missing
from dpbench.temporary import temporary_folder

PROBE_STEPS = 3
PROBE_LIMIT_SECONDS = 60.0
SECONDS_PER_TRIAL = 0.3
"""Start, verification and end of a trial on two CPU ranks (`make bench` measures it): the least,
where the probes took longer."""


def describe_plan(plan: SweepPlan, *, oversubscribe: bool) -> tuple[list[PlannedRow], str]:
    """The configurations that the plan measures, in the order of their first run, and a summary
    with an estimate of its time; nothing is stored. With --resume only what is left counts.

    A plan may have more replicas than this machine has devices; unless they may `oversubscribe`
    them, the summary says what a run needs.

    Raises what a run would raise before its first trial.
    """
    needs = "" if oversubscribe else _needs_in_words(plan)
    if needs and plan.here.machine.has_cuda:  # where it is to run, each replica has its own GPU
        devices = tuple(f"cuda:{number}" for number in range(len(plan.spec.devices)))
        plan = replace(plan, spec=replace(plan.spec, devices=devices))
    with temporary_folder() as logs, launcher_for(plan, logs) as launcher:
        reasons = unusable_configurations(plan.trials, launcher)
        usable = [trial for trial in plan.trials if trial.configuration not in reasons]
        left = missing(usable, lasting(plan.earlier.records) if plan.earlier else ())
        if plan.spec.base.workload.script:
            duration = "no estimate, as a plan does not start the script"
        elif needs or len(plan.spec.devices) > plan.here.machine.replica_count:
            duration = "no estimate, as replicas share cores or GPUs here"
        else:
            duration = estimate_in_words(left, launcher)
    done = units.stored(len(usable) - len(left), len(usable))
    warmup = units.any_of(trial.warmup_steps for trial in plan.trials)
    timed = units.any_of(trial.timed_steps for trial in plan.trials)
    if plan.spec.base.window_seconds is not None:
        timed = f"{plan.spec.base.timed_steps} to {MAX_FILLING_STEPS:,}"
    summary = (
        f"{f'Resuming: {done}. ' if plan.earlier else ''}{units.counted(len(left), 'trial')} of "
        f"{warmup} warm-up and {timed} timed steps, "
        f"{units.any_of((trial.threads_per_replica for trial in plan.trials), 'thread')} per "
        f"replica; {duration}. {needs}This plan stored nothing."
    )
    runs = Counter(trial.configuration for trial in left)
    configurations = dict.fromkeys(trial.configuration for trial in plan.trials)
    return [PlannedRow(each, runs[each], reasons.get(each)) for each in configurations], summary


def _needs_in_words(plan: SweepPlan) -> str:
    """Sentence on what a run needs and this machine lacks; "" if it has enough."""
    machine = plan.here.machine
    needed, there_are = len(plan.spec.devices), machine.replica_count
    unit = "GPU" if machine.has_cuda else "core"
    if needed <= there_are:
        threads = max(trial.threads_per_replica for trial in plan.trials)
        needed, there_are, unit = threads * max(plan.spec.group_sizes), machine.cores, "core"
    if needed <= there_are:
        return ""
    return f"A run needs {units.counted(needed, unit)}, or --oversubscribe. "


def estimate_in_words(trials: Iterable[TrialSpec], launcher: Launcher) -> str:
    """The time that the trials take, from some steps of the plain module for each batch size, or
    why it is not known."""
    runs = list(trials)
    if not runs:
        return "nothing to run"
    starts, step_seconds = list[float](), dict[TrialSpec, float]()
    for probe in dict.fromkeys(map(_probe, runs)):
        begun = monotonic()
        outcome = launcher.run(probe, PROBE_LIMIT_SECONDS)
        if outcome.status is not Status.COMPLETED:
            return f"duration unknown (a step of {plain_label(probe)} did not complete)"
        step = outcome.ranks[0].timed.seconds / PROBE_STEPS
        starts.append(monotonic() - begun - (probe.warmup_steps + PROBE_STEPS) * step)
        step_seconds[probe] = step
    seconds = len(runs) * max(min(starts), SECONDS_PER_TRIAL)
    for trial in runs:
        step = step_seconds[_probe(trial)]
        windows = 2 if trial.has_unsynced_window else 1
        steps = trial.warmup_steps + windows * (trial.filling_steps(step) + trial.phase_steps)
        if trial.repetition == 0 and trial.traces_gradients:
            steps += trial.gradient_steps
        seconds += step * steps
    duration = units.seconds(seconds)
    return f"about {duration} at the present speed of the machine, without communication"


def _probe(trial: TrialSpec) -> TrialSpec:
    """The plain module on what one replica has to do."""
    return replace(
        trial.single,
        batch_size=max(trial.replica_batch_sizes),
        scaling="weak",
        warmup_steps=1,
        timed_steps=PROBE_STEPS,
        window_seconds=None,
        phase_steps=0,
        gradient_steps=0,
        repetition=0,
    )
