"""The repetitions of a configuration: which belong together, which count, and how they ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dpbench import units
from dpbench.analysis.throughput import is_measured
from dpbench.records.trial import Status, TrialRecord
from dpbench.specs import Configuration

WORST_FIRST = (
    Status.WRONG_GRADIENTS,
    Status.FAILED,
    Status.OUT_OF_MEMORY,
    Status.TIMED_OUT,
    Status.DIVERGED,
    Status.COMPLETED,
    Status.SKIPPED,
)


def by_configuration(records: Iterable[TrialRecord]) -> dict[Configuration, list[TrialRecord]]:
    """The repetitions of each configuration, in the order they were first run.

    A trial that was run again, for example after a manual change, counts once, with its last
    record.
    """
    groups: dict[Configuration, dict[int, TrialRecord]] = {}
    for record in records:
        groups.setdefault(record.configuration, {})[record.trial.repetition] = record
    return {configuration: list(group.values()) for configuration, group in groups.items()}


def usable_repetitions(repetitions: Sequence[TrialRecord]) -> tuple[TrialRecord, ...]:
    """The repetitions with trustworthy speeds: none if any had wrong gradients."""
    if any(record.status is Status.WRONG_GRADIENTS for record in repetitions):
        return ()
    return tuple(filter(is_measured, repetitions))


def worst_status(repetitions: Sequence[TrialRecord]) -> tuple[Status, str | None]:
    """The worst status, and why it is not simply completed; a single skipped repetition does not
    hide that others completed.

    The reason is the first one, with the number of repetitions that ended that way.
    """
    statuses = [record.status for record in repetitions]
    blamed = worst = min(statuses, key=WORST_FIRST.index)
    if worst is Status.COMPLETED:
        if Status.SKIPPED not in statuses:
            return worst, None
        blamed = Status.SKIPPED
    ended_so = [record for record in repetitions if record.status is blamed]
    reason = next((record.reason for record in ended_so if record.reason), None)
    all_skipped = blamed is Status.SKIPPED and len(ended_so) == len(repetitions)
    if len(repetitions) == 1 or all_skipped:
        return worst, reason
    count = units.counted(len(repetitions), "repetition")
    verb = "with " if blamed is Status.WRONG_GRADIENTS else ""
    share = f"{len(ended_so)} of {count} {verb}{blamed.words}"
    return worst, f"{share}: {reason}" if reason else share
