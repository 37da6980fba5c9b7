"""The specification of a sweep: the axes of its grid, and the plan of its trials."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, product
from typing import Annotated, Any

from pydantic import Field

from dpbench.specs.shares import Replicas, placed
from dpbench.specs.traits import IMPLEMENTATIONS
from dpbench.specs.trial import BASELINE, MOST_REPETITIONS, TrialSpec
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
    """Whether BASELINE is measured beside the implementations."""
    nodes: tuple[Replicas, ...] = ()
    """Replicas that each host offers, in their order; () when there is one. `devices` then list
    those of the first host, of the second, …, each as its own host calls it."""

    @property
    def workloads(self) -> tuple[WorkloadSpec, ...]:
        """The workload of each architecture."""
        return (self.trial.workload, *self.more_workloads)

    def with_workloads(self, workloads: Sequence[WorkloadSpec]) -> SweepSpec:
        """This sweep with other workloads, at least one."""
        first, *more = workloads
        trial = replace(self.trial, workload=first)
        return replace(self, trial=trial, more_workloads=tuple(more))

    @property
    def most_trials(self) -> int:
        """Upper bound for the trials of the plan: all combinations, including impossible ones."""
        axes = (self.implementations, self.backends, self.group_sizes, self.batch_sizes)
        return math.prod(map(len, (*axes, *self.axes.values()))) * self.repetitions

    def variants(self) -> Iterator[dict[str, Any]]:
        """Each combination of values along the axes, in the order in which rows vary."""
        for values in product(*self.axes.values()):
            yield dict(zip(self.axes, values, strict=True))

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

    def nodes_of(self, group_size: int) -> tuple[int, ...]:
        """The number of a group's replicas on each host; () when all are on the first."""
        counts = placed(group_size, self.nodes or (len(self.devices),))
        return counts if len(counts) > 1 else ()

    def devices_of(self, group_size: int) -> tuple[str, ...]:
        """The device of each replica of a group, on its own host."""
        if not (counts := self.nodes_of(group_size)):
            return self.devices[:group_size]
        firsts = accumulate(self.nodes, initial=0)
        return tuple(
            self.devices[first + replica]
            for first, count in zip(firsts, counts, strict=False)
            for replica in range(count)
        )


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

    Rows that are compared most often run closest together in time. `single` at group size 1 is
    among them, as every speedup needs it. An implementation has no further rows for settings
    that it lacks.
    """
    names = [BASELINE] if spec.measures_baseline else []
    names = [*dict.fromkeys((*names, *spec.implementations))]
    found: dict[TrialSpec, None] = {}
    sizes = [*dict.fromkeys((1, *spec.group_sizes))]
    if spec.trial.workload.script:
        sizes.sort(reverse=True)  # if its largest group fails, no other run is worth its time
    for batch_size in spec.batch_sizes:
        for group_size in sizes:
            for name in names:
                for trial in _with_backends(name, group_size, batch_size, spec):
                    varied = (spec.varied(trial, values) for values in spec.variants())
                    found |= dict.fromkeys(varied)
    return tuple(found)


def _with_backends(
    implementation: str, group_size: int, batch_size: int, spec: SweepSpec
) -> Iterator[TrialSpec]:
    """The trials of an implementation, none at a group size that it does not have."""
    traits = IMPLEMENTATIONS[implementation]
    if implementation in spec.largest_group_only:
        has_size = group_size == max(spec.group_sizes) > 1
    elif traits.largest_group is not None:
        has_size = group_size <= traits.largest_group
    else:
        has_size = group_size in spec.group_sizes
    if not has_size:
        return
    for backend in spec.backends if traits.backend is None else (traits.backend,):
        trial = replace(
            spec.trial,
            implementation=implementation,
            backend=backend,
            group_size=group_size,
            batch_size=batch_size,
            devices=spec.devices_of(group_size),
            nodes=spec.nodes_of(group_size),
        )
        yield trial.with_own_settings
