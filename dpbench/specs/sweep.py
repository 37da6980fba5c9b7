"""The specification of a sweep: the axes of its grid, and the plan of its trials."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Annotated, Any

from pydantic import Field

from dpbench.specs.shares import Replicas, replicas_by_host
from dpbench.specs.traits import IMPLEMENTATIONS, SINGLE
from dpbench.specs.trial import MOST_REPETITIONS, TrialSpec
from dpbench.specs.workload import WORKLOAD_SETTINGS, WorkloadSpec

AxisValue = str | int | float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepSpec:
    """The axes of a grid of trials, and what all its trials share."""

    trial: TrialSpec
    """A trial on the first device, with the first value of each setting; all others are made from
    it."""
    implementations: tuple[str, ...]
    backends: tuple[str, ...]
    group_sizes: tuple[Replicas, ...]
    batch_sizes: tuple[int, ...]
    devices: tuple[str, ...]
    """A device for each replica of the largest group; smaller groups take the first ones."""
    repetitions: Annotated[int, Field(ge=1, le=MOST_REPETITIONS)]
    time_limit_seconds: float
    largest_group_only: tuple[str, ...] = ()
    """Implementations that are measured at the largest group size alone."""
    more_workloads: tuple[WorkloadSpec, ...] = ()
    """Workloads of the further architectures, each with its own data and files."""
    axes: dict[str, tuple[AxisValue, ...]] = field(default_factory=dict)
    """The settings of which rows are measured with several values, each by its key in AXES."""
    measures_baseline: bool = True
    """Whether SINGLE is measured beside the implementations."""
    nodes: tuple[Replicas, ...] = ()
    """Replicas that each host offers, in their order; () when there is one. `devices` then list
    those of the first host, of the second, …, each as its own host calls it."""

    @property
    def workloads(self) -> tuple[WorkloadSpec, ...]:
        """The workload of each architecture."""
        return (self.trial.workload, *self.more_workloads)

    @property
    def most_trials(self) -> int:
        """Upper bound for the trials of the plan: all combinations, including impossible ones, with
        the baseline and group size 1."""
        names, sizes = len(self.implementations) + 1, len(self.group_sizes) + 1
        axes = (self.backends, self.batch_sizes, *self.axes.values())
        return names * sizes * math.prod(map(len, axes)) * self.repetitions

    def varied(self, trial: TrialSpec, values: Mapping[str, Any]) -> TrialSpec:
        """The trial with these settings, and the data and files of its architecture.

        Settings that it cannot have are left out: those that its implementation lacks, and workers
        where nothing is loaded ahead.
        """
        of_workload = {name: value for name, value in values.items() if name in WORKLOAD_SETTINGS}
        of_trial = {name: value for name, value in values.items() if name not in of_workload}
        workload = replace(trial.workload, **of_workload)
        own = next(one for one in self.workloads if one.architecture == workload.architecture)
        workload = replace(workload, dataset=own.dataset, files_sha256=own.files_sha256)
        varied = replace(trial, workload=workload, **of_trial).with_own_settings
        loads = varied.prefetch or workload.script
        return varied if loads else replace(varied, data_workers=None)


def plan_trials(spec: SweepSpec, repetitions: int | None = None) -> tuple[TrialSpec, ...]:
    """All trials in the order they run: a palindrome over repetitions (A B C, C B A, A B C …).

    A drift of the machine then falls on all configurations alike. `repetitions` may differ from the
    sweep's own where they grow.
    """
    first_pass = [*rows(spec)]
    return tuple(
        replace(trial, repetition=repetition)
        for repetition in range(spec.repetitions if repetitions is None else repetitions)
        for trial in (first_pass if repetition % 2 == 0 else reversed(first_pass))
    )


def rows(spec: SweepSpec) -> tuple[TrialSpec, ...]:
    """The measured rows, each once.

    Rows that are compared most often run closest together in time. If the sweep measures a
    baseline, `single` at group size 1 is among them, as every speedup needs it. An implementation
    has no further rows for settings that it lacks, and none at a group size that it does not have.
    """
    baseline = (SINGLE,) if spec.measures_baseline else ()
    names = dict.fromkeys((*baseline, *spec.implementations))
    group_sizes = [*dict.fromkeys((1, *spec.group_sizes))]
    found: dict[TrialSpec, None] = {}
    if spec.trial.workload.script:
        group_sizes.sort(reverse=True)  # if its largest group fails, no other run is worth its time
    for batch_size, group_size, name in product(spec.batch_sizes, group_sizes, names):
        traits = IMPLEMENTATIONS[name]
        if name in spec.largest_group_only:
            has_size = group_size == max(spec.group_sizes) > 1
        elif traits.largest_group is not None:
            has_size = group_size <= traits.largest_group
        else:
            has_size = group_size in spec.group_sizes
        if not has_size:
            continue
        nodes = replicas_by_host(group_size, spec.nodes or (len(spec.devices),))
        for backend in spec.backends if traits.backend is None else (traits.backend,):
            trial = replace(
                spec.trial,
                implementation=name,
                backend=backend,
                group_size=group_size,
                batch_size=batch_size,
                devices=spec.devices[:group_size],
                nodes=nodes if len(nodes) > 1 else (),
            )
            for values in product(*spec.axes.values()):
                found[spec.varied(trial, dict(zip(spec.axes, values, strict=True)))] = None
    return tuple(found)
