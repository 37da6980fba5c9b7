"""The specification of a sweep: the axes of its grid, its configurations, and their trials."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, Field

from dpbench.specs.axes import GRID
from dpbench.specs.configuration import DEFAULTS, Configuration
from dpbench.specs.nodes import ReplicaCount, fill_nodes
from dpbench.specs.traits import IMPLEMENTATIONS
from dpbench.specs.workload import WorkloadSpec

T = TypeVar("T")

MAX_REPETITIONS = 10_000
"""A plan of more would fill the memory."""


def _with_later_axes(stored: dict[str, Any]) -> dict[str, Any]:
    """The stored axes, with the default of each that was added since."""
    return {name: (DEFAULTS[name],) for name in GRID if name in DEFAULTS} | stored


@dataclass(frozen=True, kw_only=True)  # without slots, for cached values
class SweepSpec:
    """The axes of a grid of configurations, and what all of them share."""

    implementations: tuple[str, ...]
    """In the order in which they are measured: SINGLE, if it is one of them, comes first."""
    backends: tuple[str, ...]
    group_sizes: tuple[ReplicaCount, ...]
    largest_group_only: tuple[str, ...] = ()
    """Implementations that are measured at the largest group size alone."""
    axes: Annotated[
        dict[str, tuple[str | int | float | None, ...]], AfterValidator(_with_later_axes)
    ]
    """The values of each other axis: those of GRID."""
    workloads: tuple[WorkloadSpec, ...]
    """The workload of each architecture, with its data and files, and without values of axes."""
    devices: tuple[str, ...]
    """A device for each replica of the largest group; smaller groups take the first ones."""
    devices_by_node: tuple[ReplicaCount, ...] = ()
    """How many of the `devices` are those of the first node, of the second, …, each as its own node
    calls it; () for one node."""
    is_instrumented: bool = True
    window_seconds: float | None = None
    """Both as in each `Configuration`."""
    repetitions: Annotated[int, Field(ge=1, le=MAX_REPETITIONS)]
    time_limit_seconds: float
    stop_after_failure: bool = False
    """Whether a configuration that failed is not run with more replicas."""

    def __post_init__(self) -> None:
        devices, nodes = len(self.devices), self.devices_by_node
        if max(1, *self.group_sizes) > devices or (nodes and sum(nodes) != devices):
            where = f" on nodes of {nodes}" if nodes else ""
            raise ValueError(f"groups of {self.group_sizes} replicas on {devices} devices{where}")
        architectures = tuple(workload.architecture for workload in self.workloads)
        if {*self.axes} != {*GRID} or self.axes["architecture"] != architectures:
            expected = f"the axes {', '.join(GRID)}, and a workload for each architecture"
            raise ValueError(f"expected {expected}")

    @cached_property
    def configurations(self) -> tuple[Configuration, ...]:
        """The measured configurations, each once: those that are compared most often run closest
        together in time."""
        workloads = dict(zip(self.axes["architecture"], self.workloads, strict=True))
        combinations = product(*(self.axes[name] for name in GRID))
        grid = [dict(zip(GRID, values, strict=True)) for values in combinations]
        planned = dict.fromkeys(
            Configuration.of(workloads[settings["architecture"]], group | settings).normalized
            for group in self._groups()
            for settings in grid
        )
        # Rows at one batch size are compared most often.
        batch_sizes = self.axes["batch_size"]
        return tuple(sorted(planned, key=lambda row: batch_sizes.index(row.batch_size)))

    def _groups(self) -> Iterator[dict[str, Any]]:
        """The fields of configurations that are the same in the whole grid, for each group of
        replicas: an implementation, a backend and a size that the implementation has."""
        group_sizes = [*dict.fromkeys((1, *self.group_sizes))]
        if any(workload.script for workload in self.workloads):
            # If its largest group fails, no other run is worth its time.
            group_sizes.sort(reverse=True)
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
                yield {
                    "implementation": name,
                    "backend": backend,
                    "group_size": group_size,
                    "devices": self.devices[:group_size],
                    "replicas_by_node": by_node if len(by_node) > 1 else (),
                    "is_instrumented": self.is_instrumented,
                    "window_seconds": self.window_seconds,
                }

    @cached_property
    def trials(self) -> tuple[tuple[Configuration, int], ...]:
        """Each configuration with the number of each repetition, in the order in which they run."""
        return tuple(palindrome(self.configurations, range(self.repetitions)))


def palindrome(first_pass: Sequence[T], repetitions: Iterable[int]) -> Iterator[tuple[T, int]]:
    """Each of them with each repetition, in passes to and fro (A B C, C B A, A B C …), so that a
    drift of the machine falls on all alike."""
    for repetition in repetitions:
        for item in first_pass if repetition % 2 == 0 else reversed(first_pass):
            yield item, repetition
