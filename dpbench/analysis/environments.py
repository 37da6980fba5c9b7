"""What records that come from several environments have in common and what not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from dpbench import units
from dpbench.environment import Environment
from dpbench.records import TrialRecord


def environment_notes(
    records: Sequence[TrialRecord], environments: Mapping[str, Environment]
) -> tuple[str, ...]:
    """Says which environments the records come from if there is more than one, and how they differ.

    Also names environments that records refer to and that are not stored.
    """
    counts = Counter(record.environment_id for record in records)
    notes = [
        f"environment {identifier} of {units.counted(count, 'trial')} is not stored"
        for identifier, count in counts.items()
        if identifier not in environments
    ]
    if len(counts) < 2:
        return tuple(notes)
    listed = ", ".join(f"{identifier} ({count})" for identifier, count in counts.items())
    notes.insert(0, f"trials come from {len(counts)} environments: {listed}")
    known = [identifier for identifier in counts if identifier in environments]
    for identifier in known[1:]:
        different = environments[identifier].differences_from(environments[known[0]])
        notes.append(f"environment {known[0]} -> {identifier}: {'; '.join(different) or 'equal'}")
    return tuple(notes)
