"""Which records count: the last of each trial, grouped into the repetitions of a configuration."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dpbench.analysis import throughput
from dpbench.analysis.outcome import effective_status
from dpbench.records import Status, TrialRecord
from dpbench.specs import TrialSpec


def by_configuration(records: Iterable[TrialRecord]) -> dict[TrialSpec, list[TrialRecord]]:
    """The repetitions of each configuration, in the order they were first run.

    A trial that was run again, as after a change by hand, counts once, as it ended last.
    """
    groups: dict[TrialSpec, dict[int, TrialRecord]] = {}
    for record in records:
        groups.setdefault(record.trial.configuration, {})[record.trial.repetition] = record
    return {spec: list(group.values()) for spec, group in groups.items()}


def usable_repetitions(repetitions: Sequence[TrialRecord]) -> list[TrialRecord]:
    """The repetitions whose speed may be believed: none at all if any had wrong gradients."""
    statuses = [effective_status(record) for record in repetitions]
    if Status.WRONG_GRADIENTS in statuses:
        return []
    return [
        record
        for record, status in zip(repetitions, statuses, strict=True)
        if status is Status.COMPLETED and throughput.is_measured(record)
    ]
