"""A row of results: one configuration, its settings, and the values of its metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dpbench import units
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.repetitions import is_disturbed
from dpbench.analysis.steps import WarmUp, warm_up
from dpbench.analysis.throughput import step_seconds
from dpbench.records.trial import Status, TrialRecord
from dpbench.specs import Labels, TrialSpec, series_name
from dpbench.specs.shares import on_hosts
from dpbench.specs.traits import implementation_order

MOST_LISTED = 8
"""Configurations that a note names; the rest are counted and stand in the table."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Row:
    """One configuration: its name and sizes, how it ended, and the values of its metrics.

    Rows of published numbers have no trial and no records.
    """

    implementation: str
    """The name as it is registered or published."""
    backend: str | None
    group_size: int
    batch_size: int | None
    """Samples per replica (weak scaling) or per group (strong scaling) and micro-step."""
    item: str
    """What its speed counts: images, tokens."""
    status: Status = Status.COMPLETED
    reason: str | None = None
    verified: bool | None = None
    """Whether gradients were compared with one process and agreed; None if never compared."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Values by the keys of `metrics`: an Estimate, a plain number, or None if not measured."""
    repetitions: int = 0
    """Number of completed repetitions."""
    reference: str = ""
    """Baseline of the speedup, in words: "single", or `scaling.OWN`."""
    trial: TrialSpec | None = None
    """The specification that its repetitions share."""
    labels: Labels = field(default_factory=Labels)
    """Names that distinguish it among the rows of its sweep."""
    records: tuple[TrialRecord, ...] = ()
    """The repetitions behind its values, see `repetitions.usable_repetitions`."""
    notes: tuple[str, ...] = ()
    """Remarks on this row."""
    remarks: tuple[str, ...] = ()
    """Remarks on where its values come from, which hold for other rows as well."""
    source: str = ""
    """Who measured it, on what hardware and data; only for published numbers."""
    claims: Mapping[str, str] = field(default_factory=dict)
    """Values by name as someone else stated them; not measured here."""

    def __getitem__(self, key: str) -> Any:
        """The value of a metric; None if this row does not have it."""
        return self.values.get(key)

    @property
    def throughput(self) -> Estimate | None:
        """Items per second of all replicas."""
        return self.values.get("images_per_second")

    @property
    def duration(self) -> Estimate | None:
        """Seconds for a fixed amount of work; only for published times."""
        return self.values.get("duration_seconds")

    @property
    def speedup(self) -> Estimate | None:
        return self.values.get("speedup")

    @property
    def efficiency(self) -> Estimate | None:
        """Speedup ÷ group size."""
        return self.values.get("efficiency")

    @property
    def is_too_noisy(self) -> bool:
        """Whether its speed, speedup or efficiency is too noisy to state."""
        found = (self.throughput, self.speedup, self.efficiency)
        return any(one is not None and one.is_too_noisy for one in found)

    @property
    def is_disturbed(self) -> bool:
        """Whether other processes ran on the cores during any of its repetitions."""
        return any(map(is_disturbed, self.records))

    @property
    def warm_up(self) -> WarmUp | None:
        """Slow steps at the start of its windows."""
        return warm_up([step_seconds(record) for record in self.records]) if self.records else None

    @property
    def nodes(self) -> tuple[int, ...]:
        """Number of replicas on each host; () if all are on one."""
        return () if self.trial is None else self.trial.nodes

    @property
    def work(self) -> str:
        """See Labels.work: speeds of rows are compared only where it is the same."""
        return "" if self.trial is None else self.labels.work(self.trial)

    @property
    def implementation_label(self) -> str:
        """The implementation as people read it, with settings: "ddp(bf16)", see Labels."""
        return self.implementation if self.trial is None else self.labels.implementation(self.trial)

    @property
    def series(self) -> str:
        """Name of the scaling curve: "ddp/gloo"."""
        return series_name(self.implementation_label, self.backend)

    @property
    def label(self) -> str:
        """Name of the configuration: "ddp/gloo ×2, batch 32", with "(1+1 hosts)" after the group
        size across hosts."""
        batch = "" if self.batch_size is None else f", batch {self.batch_size}"
        return f"{self.series} ×{self.group_size}{on_hosts(self.nodes)}{batch}"


def noise_note(rows: Iterable[Row], purpose: str) -> str:
    """Advice on rows that are too noisy for a purpose, such as "explain"."""
    labels = units.some_of([row.label for row in rows], MOST_LISTED)
    return f"too noisy to {purpose}: {labels}; measure again with more --repetitions"


def in_order(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Sort rows by implementation as registered, backend, group size, batch size."""
    return tuple(
        sorted(
            rows,
            key=lambda row: (
                implementation_order(row.implementation, row.implementation_label),
                row.backend or "",
                row.group_size,
                row.batch_size or 0,
            ),
        )
    )
