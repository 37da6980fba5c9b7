"""The specification of a sweep: the axes of its grid, its configurations, and their trials."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Annotated, TypeVar

from pydantic import Field

from dpbench.specs.nodes import ReplicaCount, fill_nodes
from dpbench.specs.traits import IMPLEMENTATIONS
from dpbench.specs.trial import MAX_REPETITIONS, Configuration, TrialSpec
from dpbench.specs.workload import WorkloadSpec

AxisValue = str | int | float | None
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)  # without slots, for cached values
class SweepSpec:
    """The axes of a grid of configurations, and what all of them share."""

    base: Configuration
    """The configuration that all others are made from: SINGLE on the first device, with the first
    value of each setting."""
    implementations: tuple[str, ...]
    """In the order in which they are measured: SINGLE, if it is one of them, comes first."""
    backends: tuple[str, ...]
    group_sizes: tuple[ReplicaCount, ...]
    devices: tuple[str, ...]
    """A device for each replica of the largest group; smaller groups take the first ones."""
    workloads: tuple[WorkloadSpec, ...]
    """The workload of each architecture, each with its own data and files."""
    repetitions: Annotated[int, Field(ge=1, le=MAX_REPETITIONS)]
    time_limit_seconds: float
    largest_group_only: tuple[str, ...] = ()
    """Implementations that are measured at the largest group size alone."""
    stop_after_failure: bool = False
    """Whether a configuration that failed is not run with more replicas."""
    axes: dict[str, tuple[AxisValue, ...]] = field(default_factory=dict)
    """The values of each of AXES that has several, but of architectures, which `workloads` has."""
    devices_by_node: tuple[ReplicaCount, ...] = ()
    """How many of the `devices` are those of the first node, of the second, …, each as its own node
    calls it; () for one node."""

    def __post_init__(self) -> None:
        devices, nodes = len(self.devices), self.devices_by_node
        if max(1, *self.group_sizes) > devices or (nodes and sum(nodes) != devices):
            where = f" on nodes of {nodes}" if nodes else ""
            raise ValueError(f"groups of {self.group_sizes} replicas on {devices} devices{where}")

    @cached_property
    def configurations(self) -> tuple[Configuration, ...]:
        """The measured configurations, each once.

        Configurations that are compared most often run closest together in time. An implementation
        has none at a group size that it lacks, and one for all values of a setting that it lacks.
        """
        group_sizes = [*dict.fromkeys((1, *self.group_sizes))]
        planned: dict[Configuration, None] = {}
        if self.base.workload.script:
            group_sizes.sort(
                reverse=True
            )  # if its largest group fails, no other run is worth its time
        for group_size, name in product(group_sizes, self.implementations):
            traits = IMPLEMENTATIONS[name]
            if name in self.largest_group_only:
                has_size = group_size == max(self.group_sizes) > 1
            elif traits.largest_group is not None:
                has_size = group_size <= traits.largest_group
            else:
                has_size = group_size in self.group_sizes
            if not has_size:
                continue
            by_node = fill_nodes(group_size, self.devices_by_node or (len(self.devices),))
            for backend in self.backends if traits.exchange == "ranks" else (traits.exchange,):
                configuration = replace(
                    self.base,
                    implementation=name,
                    backend=backend,
                    group_size=group_size,
                    devices=self.devices[:group_size],
                    replicas_by_node=by_node if len(by_node) > 1 else (),
                )
                for workload, values in product(self.workloads, [*product(*self.axes.values())]):
                    settings = dict(zip(self.axes, values, strict=True))
                    varied = replace(configuration, workload=workload).with_settings(settings)
                    varied = varied.without_foreign_settings
                    if not varied.prefetch and not workload.script:  # nothing for workers to load
                        varied = replace(varied, data_workers=None)
                    planned[varied] = None
        # Rows at one batch size are compared most often.
        batch_sizes = self.axes.get("batch_size", (self.base.batch_size,))
        return tuple(sorted(planned, key=lambda each: batch_sizes.index(each.batch_size)))

    @cached_property
    def trials(self) -> tuple[TrialSpec, ...]:
        """The repetitions of all configurations, in the order in which they run."""
        passes = palindrome(self.configurations, range(self.repetitions))
        return tuple(TrialSpec(configuration=one, repetition=number) for one, number in passes)


def palindrome(first_pass: Sequence[T], repetitions: Iterable[int]) -> Iterator[tuple[T, int]]:
    """Each of them with each repetition, in passes to and fro (A B C, C B A, A B C …), so that a
    drift of the machine falls on all alike."""
    for repetition in repetitions:
        for item in first_pass if repetition % 2 == 0 else reversed(first_pass):
            yield item, repetition
