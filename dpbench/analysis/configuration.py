"""One row per configuration: the combined result and outcome of its repetitions, as a value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dpbench import units
from dpbench.analysis import throughput
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.steps import StepSummary
from dpbench.records.trial import Status, TrialRecord
from dpbench.specs import TrialSpec, series_name
from dpbench.specs.shares import on_hosts
from dpbench.specs.traits import implementation_order

MOST_LISTED = 8
"""Configurations that a note names; the rest are counted and stand in the table."""
WORST_FIRST = (
    Status.WRONG_GRADIENTS,
    Status.FAILED,
    Status.OUT_OF_MEMORY,
    Status.TIMED_OUT,
    Status.DIVERGED,
    Status.COMPLETED,
    Status.SKIPPED,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfigurationOutcome:
    """The status of a configuration, and why it is not simply completed."""

    status: Status
    reason: str | None
    verified: bool | None
    """Whether gradients were compared with one process and agreed; None if never compared."""


def outcome(repetitions: Sequence[TrialRecord]) -> ConfigurationOutcome:
    """Condenses repetitions; a single skipped one does not hide that others completed.

    The reason is the first one, with the number of repetitions that ended that way.
    """
    statuses = [effective_status(record) for record in repetitions]
    worst = min(statuses, key=WORST_FIRST.index)
    blamed = worst
    if worst is Status.COMPLETED and Status.SKIPPED in statuses:
        blamed = Status.SKIPPED
    ended_so = [r for r, status in zip(repetitions, statuses, strict=True) if status is blamed]
    reason = next((text for text in map(_record_reason, ended_so) if text), None)
    all_skipped = blamed is Status.SKIPPED and len(ended_so) == len(repetitions)
    if blamed is Status.COMPLETED:
        reason = None
    elif len(repetitions) > 1 and not all_skipped:
        count = units.counted(len(repetitions), "repetition")
        verb = "with " if blamed is Status.WRONG_GRADIENTS else ""
        share = f"{len(ended_so)} of {count} {verb}{blamed.words}"
        reason = f"{share}: {reason}" if reason else share
    compared = any(record.verification is not None for record in repetitions) or None
    return ConfigurationOutcome(
        status=worst,
        reason=reason,
        verified=False if Status.WRONG_GRADIENTS in statuses else compared,
    )


def effective_status(record: TrialRecord) -> Status:
    """The recorded status, unless the record itself shows that its gradients were wrong."""
    if record.verification is not None and not record.verification.passed:
        return Status.WRONG_GRADIENTS
    return record.status


def completed(records: Iterable[TrialRecord]) -> list[TrialRecord]:
    """The records that have a speed."""
    return [record for record in records if effective_status(record) is Status.COMPLETED]


def _record_reason(record: TrialRecord) -> str | None:
    if record.reason or record.verification is None or record.verification.passed:
        return record.reason
    found = record.verification
    worst = f" in {found.worst_parameter}" if found.worst_parameter else ""
    return (
        f"gradients differ from one process by {found.max_relative_error:.2g}{worst} "
        f"(relative; tolerance {found.tolerance:.2g})"
    )


def by_configuration(records: Iterable[TrialRecord]) -> dict[TrialSpec, list[TrialRecord]]:
    """The repetitions of each configuration, in the order they were first run.

    A trial that was run again, for example after a manual change, counts once, with its last
    record.
    """
    groups: dict[TrialSpec, dict[int, TrialRecord]] = {}
    for record in records:
        groups.setdefault(record.trial.configuration, {})[record.trial.repetition] = record
    return {spec: list(group.values()) for spec, group in groups.items()}


def usable_repetitions(repetitions: Sequence[TrialRecord]) -> list[TrialRecord]:
    """The repetitions with trustworthy speeds: none if any had wrong gradients."""
    statuses = [effective_status(record) for record in repetitions]
    if Status.WRONG_GRADIENTS in statuses:
        return []
    return [
        record
        for record, status in zip(repetitions, statuses, strict=True)
        if status is Status.COMPLETED and throughput.is_measured(record)
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfigurationSummary:
    """A configuration, its speed, its scaling, its convergence, and how it ended.

    `None` means not measured or not to be shown; `reason` and `notes` say which and why.
    """

    implementation: str
    """The name as it is registered or published."""
    implementation_label: str
    """The name as people read it, with settings: "ddp(bf16)", see Labels."""
    backend: str | None
    group_size: int
    batch_size: int | None
    """Samples per replica (weak scaling) or per group (strong scaling) and micro-step."""
    global_batch_size: int | None
    item: str
    status: Status
    reason: str | None = None
    verified: bool | None = None
    throughput: Estimate | None = None
    duration: Estimate | None = None
    """Seconds for a fixed amount of work; only for published times."""
    speedup: Estimate | None = None
    reference: str = ""
    """Baseline of the speedup, in words: "single", or `scaling.OWN`; empty without one."""
    speedup_relative: Estimate | None = None
    """Speedup against the same implementation at group size 1."""
    efficiency: Estimate | None = None
    """Speedup ÷ group size."""
    measured: Mapping[str, Any] = field(default_factory=dict)
    """Every other metric by its key, see `metrics`: an Estimate, a plain number, or None;
    `row["final_loss"]` reads it."""
    steps: StepSummary | None = None
    repetitions: int = 0
    """Number of completed repetitions."""
    disturbed: int = 0
    """Number of those with other processes on the cores (`diagnosis.hints.is_disturbed`)."""
    timed_steps: int | None = None
    """Number of timed steps."""
    notes: tuple[str, ...] = ()
    source: str = ""
    """Who measured it, on what hardware and data; only for published numbers."""
    claims: tuple[tuple[str, str], ...] = ()
    """(Name, value) as someone else stated it; not measured here."""
    configuration: TrialSpec | None = None
    """The trial behind the row; None for published numbers."""
    work: str = ""
    """See Labels.work: speeds of rows are compared only where it is the same."""
    label_within_work: str = ""
    """`implementation_label` without the name of the work."""

    @property
    def is_too_noisy(self) -> bool:
        """Whether its speed, speedup or efficiency is too noisy to state."""
        found = (self.throughput, self.speedup, self.efficiency)
        return any(one is not None and one.is_too_noisy for one in found)

    def __getitem__(self, key: str) -> Any:
        """The metric of this key, of those in `measured`; None if this row does not have it."""
        return self.measured.get(key)

    @property
    def label(self) -> str:
        """Name of the configuration: "ddp/gloo ×2, batch 32", with "(1+1 hosts)" after the group
        size across hosts."""
        batch = "" if self.batch_size is None else f", batch {self.batch_size}"
        return f"{self.series} ×{self.group_size}{on_hosts(self.nodes)}{batch}"

    @property
    def nodes(self) -> tuple[int, ...]:
        """Number of replicas on each host; () if all are on one."""
        return () if self.configuration is None else self.configuration.nodes

    @property
    def learning_rate(self) -> float | None:
        """The learning rate that ran, scaled by its rule."""
        return None if self.configuration is None else self.configuration.learning_rate

    @property
    def learning_rate_rule(self) -> str | None:
        trial = self.configuration
        return None if trial is None else trial.workload.learning_rate_rule

    @property
    def named_within_work(self) -> ConfigurationSummary:
        """The row without the name of its work in its own, for where that is said already."""
        name = self.label_within_work or self.implementation_label
        return replace(self, implementation_label=name)

    @property
    def series(self) -> str:
        """Name of the scaling curve: "ddp/gloo"."""
        return series_name(self.implementation_label, self.backend)


def by_work(
    rows: Iterable[ConfigurationSummary],
) -> dict[str, tuple[ConfigurationSummary, ...]]:
    """Rows by their work, in the order of the first ones."""
    groups: dict[str, list[ConfigurationSummary]] = {}
    for row in rows:
        groups.setdefault(row.work, []).append(row)
    return {work: tuple(group) for work, group in groups.items()}


def with_note(row: ConfigurationSummary, *notes: str) -> ConfigurationSummary:
    return replace(row, notes=(*row.notes, *notes)) if notes else row


def noise_note(rows: Iterable[ConfigurationSummary], purpose: str) -> str:
    """Advice on rows that are too noisy for a purpose, such as "explain"."""
    labels = units.some_of([row.label for row in rows], MOST_LISTED)
    return f"too noisy to {purpose}: {labels}; measure again with more --repetitions"


def in_order(rows: Iterable[ConfigurationSummary]) -> tuple[ConfigurationSummary, ...]:
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
