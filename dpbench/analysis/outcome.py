"""The outcome of a configuration, from those of its repetitions: the worst wins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dpbench import units
from dpbench.analysis import throughput
from dpbench.records import Status, TrialRecord
from dpbench.specs import TrialSpec

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
class Outcome:
    """The status of a configuration, and why it is not simply completed."""

    status: Status
    reason: str | None
    verified: bool | None
    """Whether gradients were compared with one process and agreed; None if never compared."""


def outcome(repetitions: Sequence[TrialRecord]) -> Outcome:
    """Condenses repetitions; a single skipped one does not hide that others completed."""
    statuses = [effective_status(record) for record in repetitions]
    worst = min(statuses, key=WORST_FIRST.index)
    blamed = worst
    if worst is Status.COMPLETED and Status.SKIPPED in statuses:
        blamed = Status.SKIPPED
    return Outcome(
        status=worst,
        reason=None if blamed is Status.COMPLETED else _reason(repetitions, statuses, blamed),
        verified=_verified(repetitions),
    )


def effective_status(record: TrialRecord) -> Status:
    """The recorded status, unless the record itself shows that its gradients were wrong."""
    if record.verification is not None and not record.verification.passed:
        return Status.WRONG_GRADIENTS
    return record.status


def completed(records: Iterable[TrialRecord]) -> list[TrialRecord]:
    """The records that have a speed."""
    return [record for record in records if effective_status(record) is Status.COMPLETED]


def _reason(
    repetitions: Sequence[TrialRecord], statuses: Sequence[Status], blamed: Status
) -> str | None:
    """The first reason, and how many repetitions ended that way if there were others."""
    ended_so = [r for r, status in zip(repetitions, statuses, strict=True) if status is blamed]
    first = next((text for text in map(_record_reason, ended_so) if text), None)
    if len(repetitions) == 1 or (blamed is Status.SKIPPED and len(ended_so) == len(repetitions)):
        return first
    count = units.counted(len(repetitions), "repetition")
    share = f"{len(ended_so)} of {count} {blamed.words}"
    return f"{share}: {first}" if first else share


def _record_reason(record: TrialRecord) -> str | None:
    if record.reason or record.verification is None or record.verification.passed:
        return record.reason
    found = record.verification
    worst = f" in {found.worst_parameter}" if found.worst_parameter else ""
    return (
        f"gradients differ from one process by {found.max_relative_error:.2g}{worst} "
        f"(relative; tolerance {found.tolerance:.2g})"
    )


def _verified(repetitions: Sequence[TrialRecord]) -> bool | None:
    if any(effective_status(record) is Status.WRONG_GRADIENTS for record in repetitions):
        return False
    return True if any(record.verification is not None for record in repetitions) else None


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
