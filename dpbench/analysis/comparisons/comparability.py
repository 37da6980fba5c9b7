"""Whether records were measured under conditions that allow a comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from dpbench import units
from dpbench.analysis.comparisons.matching import Matched, Side
from dpbench.analysis.row import MOST_LISTED
from dpbench.data.user_code import named_files
from dpbench.errors import NotComparable
from dpbench.records.collectives import CollectiveRecord, CollectiveSpec
from dpbench.records.environment import SYNTHETIC, SYNTHETIC_NOTE, Environment, comparable
from dpbench.records.trial import TrialRecord
from dpbench.specs import Labels, TrialSpec

AnyRecord = TrialRecord | CollectiveRecord


def environment_notes(
    records: Sequence[AnyRecord], environments: Mapping[str, Environment], *, noun: str = "trial"
) -> tuple[str, ...]:
    """Notes on the environments of the records if there is more than one, and on their differences.

    They also name configurations whose replicas shared a core or a GPU.
    """
    notes = []
    counts = Counter(comparable(record.environment_id) for record in records)
    if len(counts) > 1:
        listed = ", ".join(f"{identifier} ({count})" for identifier, count in counts.items())
        notes.append(f"{noun}s come from {len(counts)} environments: {listed}")
    if any(environment.launcher == SYNTHETIC for environment in environments.values()):
        notes.append(SYNTHETIC_NOTE)
    notes += _oversubscribed(records, environments)
    used = dict.fromkeys(name for record in records for name in record.environment_ids)
    first_hosts = {record.environment_id for record in records}
    known = [identifier for identifier in used if identifier in environments]
    for identifier in known[1:]:
        different = environments[identifier].differences_from(environments[known[0]])
        if different:
            what = "environment" if identifier in first_hosts else "the hosts differ, environment"
            notes.append(f"{what} {known[0]} -> {identifier}: {'; '.join(different)}")
    commits = dict.fromkeys(environments[identifier].git_commit or "none" for identifier in known)
    if len(commits) > 1:
        notes.append(f"{noun}s come from {len(commits)} git commits: {', '.join(commits)}")
    return tuple(notes)


def _oversubscribed(
    records: Sequence[AnyRecord], environments: Mapping[str, Environment]
) -> list[str]:
    """One line for each resource that is oversubscribed; cores are those of one host."""
    labels = Labels.among(record.trial for record in records if isinstance(record, TrialRecord))
    found: dict[tuple[str, str], dict[str, int]] = {}
    for record in records:
        environment = environments.get(record.environment_id)
        if environment is None or not record.ranks:
            continue
        spec: TrialSpec | CollectiveSpec
        if isinstance(record, TrialRecord):
            spec, name = record.trial, labels.configuration(record.trial)
            on_one_host = max(spec.nodes, default=spec.group_size)
            gpus = len({*spec.places})
        else:
            spec, name = record.collective, record.collective.label
            on_one_host, gpus = spec.group_size, len({*spec.devices})
        if spec.devices[0] == "cpu":
            needed, there = on_one_host * spec.threads_per_replica, environment.usable_cores
            what, where = "threads", "cores"
        else:
            needed, there, what, where = spec.group_size, gpus, "replicas", "GPUs"
        if needed > there:
            found.setdefault((what, f"{there} {where}"), {})[name] = needed
    return [
        f"oversubscribed, {units.span([*needs.values()])} {what} on {where}: "
        f"{units.some_of([*needs], MOST_LISTED, 'configuration')}"
        for (what, where), needs in found.items()
    ]


def check_environments(matched: Matched, *, force: bool = False) -> tuple[str, ...]:
    """Notes on what may differ between the environments of the two sides; () if nothing does.

    Raises NotComparable if they differ in a way that forbids a comparison, unless `force`.
    """
    before, after = _environments(matched.baseline), _environments(matched.candidate)
    is_synthetic = any(
        one is not None and one.launcher == SYNTHETIC for one in (*before.values(), *after.values())
    )
    notes = dict.fromkeys([SYNTHETIC_NOTE] if is_synthetic else [])
    for pair in matched.pairs:
        if pair.baseline and pair.candidate:
            then, now = pair.baseline[0].trial.workload, pair.candidate[0].trial.workload
            if then.files_sha256 != now.files_sha256 and named_files(now) == named_files(then):
                notes[f"{named_files(now)} has changed between the two"] = None
    # Another commit is the reason for most comparisons.
    for name, words in (("git_commit", "git commits"), ("hostname", "hosts")):
        first, second = (
            dict.fromkeys(getattr(one, name) or "not known" for one in side.values() if one)
            for side in (before, after)
        )
        if first and second and first.keys() != second.keys():
            notes[f"{words} differ: {', '.join(first)} -> {', '.join(second)}"] = None
    if not force and (differences := environment_differences(matched)):
        raise NotComparable(
            f"{matched.baseline.label} and {matched.candidate.label} come from different "
            f"environments: {'; '.join(differences)}. --force compares them nevertheless"
        )
    return tuple(notes)


def environment_differences(matched: Matched) -> tuple[str, ...]:
    """Differences between the environments of the two sides: "cpu: A -> B"; () if there are none.

    The commit and the host may differ, and so may sides that mix the same environments.
    """
    before, after = _environments(matched.baseline), _environments(matched.candidate)
    if before.keys() == after.keys():
        return ()
    found = dict.fromkeys(
        f"environment {name} of {side.label} is not stored"
        for side, known in ((matched.baseline, before), (matched.candidate, after))
        for name, environment in known.items()
        if environment is None
    )
    for one in filter(None, before.values()):
        for other in filter(None, after.values()):
            found |= dict.fromkeys(other.differences_from(one))
    return tuple(found)


def _environments(side: Side) -> dict[str, Environment | None]:
    """The environments of a side by the comparable part of their ids; None for those that are not
    stored."""
    return {
        comparable(name): side.environments.get(name)
        for record in side.selected()
        for name in record.environment_ids
    }
