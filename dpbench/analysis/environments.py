"""What records that come from several environments have in common and what not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from dpbench import units
from dpbench.collectives import CollectiveRecord, CollectiveSpec
from dpbench.environment import SYNTHETIC, Environment, comparable
from dpbench.records import TrialRecord
from dpbench.specs import TrialSpec

SYNTHETIC_NOTE = "synthetic numbers from a cost model: nothing was run"

Record = TrialRecord | CollectiveRecord


def environment_notes(
    records: Sequence[Record], environments: Mapping[str, Environment], *, noun: str = "trial"
) -> tuple[str, ...]:
    """Says which environments the records come from if there is more than one, and how they differ.

    Also names environments that records refer to and that are not stored, and configurations
    whose replicas shared a core or a GPU.
    """
    counts = Counter(record.environment_id for record in records)
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
    known = [identifier for identifier in counts if identifier in environments]
    for identifier in known[1:]:
        different = environments[identifier].differences_from(environments[known[0]])
        if different:
            notes.append(f"environment {known[0]} -> {identifier}: {'; '.join(different)}")
    commits = dict.fromkeys(environments[identifier].git_commit or "none" for identifier in known)
    if len(commits) > 1:
        notes.append(f"{noun}s come from {len(commits)} git commits: {', '.join(commits)}")
    return tuple(notes)


def _oversubscribed(
    records: Sequence[Record], environments: Mapping[str, Environment]
) -> list[str]:
    shared: dict[str, dict[str, None]] = {}
    for record in records:
        environment = environments.get(record.environment_id)
        spec = record.trial if isinstance(record, TrialRecord) else record.collective
        what = _shared_resource(spec, environment) if environment else None
        if what and record.ranks:
            shared.setdefault(what, {})[spec.label] = None
    return [f"oversubscribed, {what}: {'; '.join(labels)}" for what, labels in shared.items()]


def _shared_resource(spec: TrialSpec | CollectiveSpec, environment: Environment) -> str | None:
    if spec.devices[0] != "cpu":
        devices = len(set(spec.devices))
        return (
            f"{spec.group_size} replicas on {devices} GPUs" if devices < spec.group_size else None
        )
    threads = spec.group_size * spec.threads_per_replica
    return (
        f"{threads} threads on {environment.cores} cores" if threads > environment.cores else None
    )
