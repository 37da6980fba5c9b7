"""Names of configurations, which tell the settings that distinguish them from each other."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dpbench.specs.axes import AXES
from dpbench.specs.nodes import on_nodes
from dpbench.specs.traits import BACKENDS, IMPLEMENTATIONS
from dpbench.specs.trial import DEFAULTS, Configuration

NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)")


@dataclass(frozen=True, slots=True)
class Labels:
    """Names of configurations, among others that have `several` values of these settings."""

    several: tuple[str, ...] = ()

    @classmethod
    def among(cls, configurations: Iterable[Configuration]) -> Labels:
        """Names that distinguish these configurations."""
        listed = [*configurations]
        return cls(tuple(name for name in AXES if len({c.setting(name) for c in listed}) > 1))

    def work_label(self, configuration: Configuration) -> str:
        """The settings that make its work another one than that of others, in words: "gpt,
        strong"; "" if all have the same work."""
        return ", ".join(
            axis.text(configuration.setting(name))
            for name, axis in AXES.items()
            if axis.changes_work and name in self.several
        )

    @property
    def within_work(self) -> Labels:
        """Names without what `work_label` says."""
        return Labels(tuple(name for name in self.several if not AXES[name].changes_work))

    def implementation(self, configuration: Configuration) -> str:
        """The implementation with the settings that it shows: "ddp(bf16, 5 MiB)", "local-sgd(4)"
        for the steps between two averages."""
        words = []
        for name, axis in AXES.items():
            value = configuration.setting(name)
            # A user's data are never on the device: without loading ahead, they have 0 in place of
            # None.
            is_zero_for_none = value == 0 and DEFAULTS.get(name, 0) is None
            if axis.changes_work or name not in DEFAULTS or is_zero_for_none:
                is_told = name in self.several
            else:
                is_told = value != DEFAULTS[name]
            if is_told and value is not None:
                words.append(axis.shown(value))
        shown = ", ".join(filter(None, words))
        name = configuration.implementation
        return f"{name}({shown})" if shown else name

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


def implementation_order(name: str, label: str) -> tuple[int, tuple[tuple[float, str], ...]]:
    """Sort key for rows: implementations in their order, and numbers in labels by their value, so
    that "local-sgd(20)" comes before "local-sgd(100)"."""
    known = list(IMPLEMENTATIONS)
    place = known.index(name) if name in known else len(known)
    texts = NUMBER.split(label)  # every second one is a number
    parts = ((float(t), "") if i % 2 else (-1.0, t) for i, t in enumerate(texts))
    return place, tuple(parts)
