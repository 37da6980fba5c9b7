"""The specification of a sweep: the axes of its grid."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, product
from typing import Annotated, Any

from pydantic import Field

from dpbench.specs.shares import Replicas, placed
from dpbench.specs.trial import MOST_REPETITIONS, TrialSettings, TrialSpec
from dpbench.specs.workload import WORKLOAD_SETTINGS, WorkloadSpec

AxisValue = str | int | float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepSpec(TrialSettings):
    """The axes of a grid of trials, and what all its trials share."""

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
        return (self.workload, *self.more_workloads)

    def with_workloads(self, workloads: Sequence[WorkloadSpec]) -> SweepSpec:
        """This sweep with other workloads, at least one."""
        first, *more = workloads
        return replace(self, workload=first, more_workloads=tuple(more))

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
