"""Common points and differences of the environments that records come from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from dpbench import units
from dpbench.collectives import CollectiveRecord, CollectiveSpec
from dpbench.environment import SYNTHETIC, Environment, comparable
from dpbench.records import TrialRecord
from dpbench.specs import TrialSpec

SYNTHETIC_NOTE = "synthetic numbers from a cost model: nothing was run"

NAMED = 8
"""Most configurations that a note names; beyond that it gives their number and sizes."""

Record = TrialRecord | CollectiveRecord

Spec = TrialSpec | CollectiveSpec


def environment_notes(
    records: Sequence[Record], environments: Mapping[str, Environment], *, noun: str = "trial"
) -> tuple[str, ...]:
    """Notes on the environments of the records if there is more than one, and on their differences.

    They also name missing environments that records refer to, and configurations whose replicas
    shared a core or a GPU.
    """
    counts = Counter(name for record in records for name in identifiers(record))
    notes = [
        f"environment {identifier} of {units.counted(count, noun)} is not stored"
        for identifier, count in counts.items()
        if identifier not in environments
    ]
    if any(environment.launcher == SYNTHETIC for environment in environments.values()):
        notes.append(SYNTHETIC_NOTE)
    notes += _oversubscribed(records, environments)
    groups = Counter(comparable(record.environment_id) for record in records)
    if len(groups) > 1:
        listed = ", ".join(f"{identifier} ({count})" for identifier, count in groups.items())
        notes.insert(0, f"{noun}s come from {len(groups)} environments: {listed}")
    first_hosts = {record.environment_id for record in records}
    known = [identifier for identifier in counts if identifier in environments]
    for identifier in known[1:]:
        different = environments[identifier].differences_from(environments[known[0]])
        if different:
            what = "environment" if identifier in first_hosts else "the hosts differ, environment"
            notes.append(f"{what} {known[0]} -> {identifier}: {'; '.join(different)}")
    commits = dict.fromkeys(environments[identifier].git_commit or "none" for identifier in known)
    if len(commits) > 1:
        notes.append(f"{noun}s come from {len(commits)} git commits: {', '.join(commits)}")
    return tuple(notes)


def identifiers(record: Record) -> tuple[str, ...]:
    """Ids of the environments of all the record's hosts."""
    if isinstance(record, TrialRecord):
        return record.environment_ids
    return (record.environment_id,)


def _oversubscribed(
    records: Sequence[Record], environments: Mapping[str, Environment]
) -> list[str]:
    """One line for each resource that is oversubscribed."""
    found: dict[tuple[str, str], dict[Spec, int]] = {}
    for record in records:
        environment = environments.get(record.environment_id)
        if environment is None or not record.ranks:
            continue
        spec = record.trial if isinstance(record, TrialRecord) else record.collective
        needed, what, there, where = _demand(spec, environment)
        if needed > there:
            found.setdefault((what, f"{there} {where}"), {})[spec] = needed
    return [
        f"oversubscribed, {_range(needs.values())} {what} on {there}: {_configurations([*needs])}"
        for (what, there), needs in found.items()
    ]


def _demand(spec: Spec, environment: Environment) -> tuple[int, str, int, str]:
    """Number and kind of users, and number and kind of the resource that they share; cores are
    those of one host."""
    places = spec.places if isinstance(spec, TrialSpec) else spec.devices
    share = spec.largest_share if isinstance(spec, TrialSpec) else spec.group_size
    if spec.devices[0] != "cpu":
        return spec.group_size, "replicas", len(set(places)), "GPUs"
    return share * spec.threads_per_replica, "threads", environment.cores, "cores"


def _configurations(specs: Sequence[Spec]) -> str:
    labels = dict.fromkeys(spec.label for spec in specs)
    if len(labels) <= NAMED:
        return "; ".join(labels)
    sizes = _range([spec.group_size for spec in specs])
    return f"{len(labels):,} configurations of group size {sizes}"


def _range(numbers: Collection[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"
