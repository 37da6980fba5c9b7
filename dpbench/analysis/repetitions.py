"""Which records count: the last of each trial, grouped into the repetitions of a configuration."""

from __future__ import annotations

from collections.abc import Iterable

from dpbench.records import TrialRecord
from dpbench.specs import TrialSpec


def by_configuration(records: Iterable[TrialRecord]) -> dict[TrialSpec, list[TrialRecord]]:
    """The repetitions of each configuration, in the order they were first run.

    A trial that was run again, as after a change by hand, counts once, as it ended last.
    """
    groups: dict[TrialSpec, dict[int, TrialRecord]] = {}
    for record in records:
        groups.setdefault(record.trial.configuration, {})[record.trial.repetition] = record
    return {spec: list(group.values()) for spec, group in groups.items()}
