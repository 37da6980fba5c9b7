"""Tolerances of `dpbench check`, and what it checks before it measures anything."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated

from dpbench import units
from dpbench.analysis.comparisons.matching import NotComparable, Side
from dpbench.analysis.configuration import by_configuration, usable_repetitions
from dpbench.analysis.metrics import METRICS
from dpbench.architecture import make_importable
from dpbench.data.user_code import user_code, with_files
from dpbench.errors import UsageError
from dpbench.launch.machine import Machine
from dpbench.options.bridge import read_value
from dpbench.options.check import CheckOptions
from dpbench.options.types import Choice, Percent
from dpbench.records.trial import Status, TrialRecord
from dpbench.run.sweep.grid import plan_trials
from dpbench.run.this_machine import environment_here
from dpbench.specs import SweepSpec, WorkloadSpec

FEWEST_REPETITIONS = 2
"""One value per side has no spread between runs, and so no verdict."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Thresholds:
    """Compared metrics, their tolerances, and the limit on repetitions."""

    tolerances: dict[str, float]
    """The accepted slowdown of each metric: 0.03 for 3 %."""
    strict: bool
    repetitions: int
    budget_seconds: float

    def describe(self) -> str:
        """The tolerances, for whoever reads the log of a failed check."""
        held = ", ".join(
            f"{metric} {100 * share:.3g} %" for metric, share in self.tolerances.items()
        )
        return f"tolerance: {held}; {'strict' if self.strict else 'not strict'}"

    def describe_plan(self, trials: int, seconds: float | str) -> str:
        """How much is measured whatever the budget is, and the seconds that this takes (or why
        they are not known)."""
        takes = seconds if isinstance(seconds, str) else f"about {units.seconds(seconds)}"
        return (
            f"at least {self.repetitions} repetitions ({units.counted(trials, 'trial')}), {takes}, "
            "whatever --budget is; then more while inconclusive, until "
            f"{units.seconds(self.budget_seconds)} in all are spent"
        )


def thresholds_of(options: CheckOptions) -> Thresholds:
    """The thresholds of a check; raises UsageError for a metric that cannot be used."""
    tolerances: dict[str, float] = {}
    for entry in (part for text in options.metric for part in text.split(",")):
        name, has_own, own = entry.partition("=")
        metric = read_value("--metric", Annotated[str, Choice(tuple(METRICS))], name.strip())
        if metric in tolerances:
            raise UsageError(f"--metric: {metric} is listed twice; give it one tolerance")
        tolerances[metric] = (
            read_value(f"--metric {metric}", Percent, own) if has_own else options.tolerance
        )
    return Thresholds(
        tolerances=tolerances,
        strict=options.strict,
        repetitions=options.repetitions,
        budget_seconds=options.budget,
    )


def unmeasured(spec: SweepSpec) -> tuple[TrialRecord, ...]:
    """The planned trials as records without numbers, to find out what can be compared."""
    return tuple(
        TrialRecord(
            trial=trial,
            environment_id="",
            started_utc="",
            duration_seconds=0.0,
            status=Status.SKIPPED,
        )
        for trial in plan_trials(spec, 1)
    )


def require_trusted_code(baseline: str, spec: SweepSpec, theirs: Mapping[str, str]) -> None:
    """Raise UsageError unless the command names exactly the user's code that the sweep of the
    baseline would run."""
    needed = user_code(spec)
    for key in {**needed, **theirs}:
        if key not in needed:
            raise UsageError(
                f"--{key} {theirs[key]} has no effect, as {baseline} is run again as it is; leave "
                "it out"
            )
        if theirs.get(key) != needed[key]:
            raise UsageError(
                f"--baseline {baseline}: its sweep uses --{key} {needed[key]}, whose code would be "
                f"imported; if you trust it, give --{key} {shlex.quote(needed[key])} as well"
            )
    make_importable(*needed.values())


def as_it_is_now(workload: WorkloadSpec) -> WorkloadSpec:
    """The workload with the user's files of today; raises UsageError for code that does not run."""
    from dpbench.measure.try_out import load_tried, try_step

    loaded = load_tried(workload.architecture)
    if workload.step is not None:
        try_step(workload.step, loaded)
    return with_files(workload)


def check_baseline(before: Side) -> None:
    """Raise UsageError for results with less than a spread in every configuration."""
    groups = by_configuration(before.selected()).values()
    most = max(len(usable_repetitions(group)) for group in groups)
    if most < FEWEST_REPETITIONS:
        raise UsageError(
            f"{before.label} has at most {units.counted(most, 'completed repetition')} of a "
            f"configuration, but a spread takes {FEWEST_REPETITIONS}, better 5; measure it again"
        )


def check_environment(before: Side, machine: Machine) -> None:
    """Raise NotComparable for results of another environment than this one."""
    now = environment_here(machine)
    different = [d for there in before.environments.values() for d in now.differences_from(there)]
    if different:
        raise NotComparable(
            f"{before.label} comes from another environment than this one: "
            f"{'; '.join(dict.fromkeys(different))}. --force compares nevertheless, --against "
            "measures a baseline here"
        )


def check_baselines_of_efficiency(metrics: Collection[str], spec: SweepSpec) -> None:
    """Raise UsageError for a metric that is relative to one replica, where that is not run."""
    relative = [metric for metric in metrics if METRICS[metric].relative]
    if relative and (1 not in spec.group_sizes or max(spec.group_sizes) == 1):
        raise UsageError(
            f"--metric {relative[0]} needs group size 1 and a larger one, but --group-sizes are "
            f"{','.join(map(str, spec.group_sizes))}; measure both"
        )
