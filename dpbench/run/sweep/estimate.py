"""How long a plan may take, from a few steps of the plain module at each of its batch sizes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from dpbench import units
from dpbench.analysis.throughput import step_seconds
from dpbench.grid import run
from dpbench.launch.launcher import Launcher
from dpbench.records import Status, TrialRecord
from dpbench.specs import TrialSpec
from dpbench.traits import IMPLEMENTATIONS

PROBE_STEPS = 3
PROBE_LIMIT_SECONDS = 60.0
FEWEST_STEPS = 100
"""The fewest steps of a window that grows (measure.adaptive looks at it first then)."""
SECONDS_PER_TRIAL = 0.3
"""Start, verification and end of a trial on two CPU ranks (`make bench` measures it): the least,
where the probes took longer."""


def estimate_seconds(trials: Iterable[TrialSpec], launcher: Launcher) -> str:
    """Says "about 2 min 10 s (from 3 steps of the plain module per batch size)"."""
    runs = list(trials)
    if not runs:
        return "nothing of it can run here"
    seconds, probed = 0.0, dict[TrialSpec, _Probed | None]()
    for trial in runs:
        probe = _probe(trial)
        if probe not in probed:
            probed[probe] = _measured(probe, launcher)
        if (found := probed[probe]) is None:
            return f"its duration is unknown: a step of {probe.label} did not complete"
        seconds += found.step_seconds * _steps(trial)
    # The first probe also starts the process that all ranks are forked from.
    around = min(found.other_seconds for found in probed.values() if found is not None)
    seconds += len(runs) * max(around, SECONDS_PER_TRIAL)
    return (
        f"about {units.seconds(seconds)} (from {PROBE_STEPS} steps of the plain module per "
        "batch size; communication comes on top)"
    )


def _probe(trial: TrialSpec) -> TrialSpec:
    """The plain module on what one replica has to do."""
    return replace(
        trial.of_one_replica,
        implementation="single",
        backend="none",
        batch_size=max(trial.replica_batch_sizes),
        scaling="weak",
        warmup_steps=1,
        timed_steps=PROBE_STEPS,
        precision=None,
        phase_steps=0,
        noise_steps=0,
        trace_steps=0,
        gradient_steps=0,
        repetition=0,
        compared=(),
    ).with_own_settings


def _steps(trial: TrialSpec) -> int:
    windows = 2 if IMPLEMENTATIONS[trial.implementation].can_leave_out_sync else 1
    timed = FEWEST_STEPS if trial.precision else trial.timed_steps
    around = trial.warmup_steps + trial.noise_steps + trial.trace_steps
    if trial.traces_gradients:
        around += 2 * trial.gradient_steps
    return around + windows * (timed + trial.phase_steps)


class _Probed(NamedTuple):
    """What a probe took: a step, and all but its steps."""

    step_seconds: float
    other_seconds: float


def _measured(probe: TrialSpec, launcher: Launcher) -> _Probed | None:
    records: list[TrialRecord] = list(
        run([probe], launcher, environment_id="", time_limit_seconds=PROBE_LIMIT_SECONDS)
    )
    if records[0].status is not Status.COMPLETED:
        return None
    step = float(step_seconds(records[0]).mean())
    steps = probe.warmup_steps + probe.timed_steps
    return _Probed(step, records[0].duration_seconds - steps * step)
