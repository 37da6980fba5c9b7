"""Names of configurations, which tell the settings that distinguish them from each other."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from dpbench.specs.axes import AXES
from dpbench.specs.configuration import DEFAULTS, Configuration
from dpbench.specs.nodes import on_nodes
from dpbench.specs.traits import BACKENDS

IDENTITY = tuple(name for name, axis in AXES.items() if axis.shown is None)
"""What the names of all rows tell, in the order in which rows are sorted; other settings are in
names where they differ."""


@dataclass(frozen=True, slots=True)
class Labels:
    """Names of configurations, among others that have `several` values of these settings."""

    several: tuple[str, ...] = ()

    @classmethod
    def among(cls, configurations: Iterable[Configuration]) -> Labels:
        """Names that distinguish these configurations."""
        listed = [*configurations]
        shown = (name for name, axis in AXES.items() if axis.shown)
        return cls(tuple(name for name in shown if len({c.setting(name) for c in listed}) > 1))

    def work_label(self, configuration: Configuration) -> str:
        """The settings that make its work another one than that of others, in words: "gpt,
        strong"; "" if all have the same work."""
        return ", ".join(
            axis.text(configuration.setting(name))
            for name, axis in AXES.items()
            if axis.changes_work and name in self.several
        )

    def implementation(self, configuration: Configuration, without: Collection[str] = ()) -> str:
        """The implementation with the settings that it shows, `without` these: "ddp(bf16, 5 MiB)",
        "local-sgd(4)" for the steps between two averages."""
        words = []
        for name, axis in AXES.items():
            value = configuration.setting(name)
            if axis.shown is None or value is None or name in without:
                continue
            if axis.changes_work or name not in DEFAULTS or value == axis.unnamed:
                is_told = name in self.several
            else:
                is_told = value != DEFAULTS[name]
            if is_told:
                words.append(axis.shown(value))
        name = configuration.implementation
        return f"{name}({', '.join(words)})" if words else name

    def label(self, configuration: Configuration) -> str:
        """The whole name: "ddp/gloo ×2, batch 32", and "ddp/gloo ×2 (1+1 nodes), batch 32" across
        nodes."""
        series = series_name(self.implementation(configuration), configuration.backend)
        nodes, size = configuration.replicas_by_node, configuration.group_size
        return row_name(series, size, nodes, configuration.batch_size)


def plain_label(configuration: Configuration) -> str:
    """Name of a configuration where no others are listed."""
    return Labels().label(configuration)


def series_name(implementation: str, backend: str | None) -> str:
    """Name of a scaling curve; a backend without a process group adds nothing to it."""
    return f"{implementation}/{backend}" if backend in BACKENDS else implementation


def row_name(
    series: str,
    group_size: int | None = None,
    replicas_by_node: Sequence[int] = (),
    batch_size: int | None = None,
) -> str:
    """Name of a row, or of several that have only some of these in common."""
    size = f"×{group_size}{on_nodes(replicas_by_node)}" if group_size else ""
    batch = f"batch {batch_size}" if batch_size else ""
    return ", ".join(filter(None, (f"{series} {size}".strip(), batch)))
