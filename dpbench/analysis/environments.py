"""What records that come from several environments have in common and what not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from dpbench import units
from dpbench.environment import SYNTHETIC, Environment, comparable
from dpbench.records import TrialRecord
from dpbench.specs import TrialSpec

SYNTHETIC_NOTE = "synthetic numbers from a cost model: nothing was run"


def environment_notes(
    records: Sequence[TrialRecord], environments: Mapping[str, Environment]
) -> tuple[str, ...]:
    """Says which environments the records come from if there is more than one, and how they differ.

    Also names environments that records refer to and that are not stored, and configurations
    whose replicas shared a core or a GPU.
    """
    counts = Counter(record.environment_id for record in records)
    notes = [
        f"environment {identifier} of {units.counted(count, 'trial')} is not stored"
        for identifier, count in counts.items()
        if identifier not in environments
    ]
    if any(environment.launcher == SYNTHETIC for environment in environments.values()):
        notes.append(SYNTHETIC_NOTE)
    notes += _oversubscribed(records, environments)
    groups = Counter(comparable(record.environment_id) for record in records)
    if len(groups) > 1:
        listed = ", ".join(f"{identifier} ({count})" for identifier, count in groups.items())
        notes.insert(0, f"trials come from {len(groups)} environments: {listed}")
    known = [identifier for identifier in counts if identifier in environments]
    for identifier in known[1:]:
        different = environments[identifier].differences_from(environments[known[0]])
        if different:
            notes.append(f"environment {known[0]} -> {identifier}: {'; '.join(different)}")
    commits = dict.fromkeys(environments[identifier].git_commit or "none" for identifier in known)
    if len(commits) > 1:
        notes.append(f"trials come from {len(commits)} git commits: {', '.join(commits)}")
    return tuple(notes)


def _oversubscribed(
    records: Sequence[TrialRecord], environments: Mapping[str, Environment]
) -> list[str]:
    shared: dict[str, dict[str, None]] = {}
    for record in records:
        environment = environments.get(record.environment_id)
        what = _shared_resource(record.trial, environment) if environment else None
        if what and record.ranks:
            shared.setdefault(what, {})[record.trial.label] = None
    return [f"oversubscribed, {what}: {'; '.join(labels)}" for what, labels in shared.items()]


def _shared_resource(trial: TrialSpec, environment: Environment) -> str | None:
    if trial.devices[0] != "cpu":
        devices = len(set(trial.devices))
        return (
            f"{trial.group_size} replicas on {devices} GPUs" if devices < trial.group_size else None
        )
    threads = trial.group_size * trial.threads_per_replica
    return (
        f"{threads} threads on {environment.cores} cores" if threads > environment.cores else None
    )
