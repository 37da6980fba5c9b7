"""Whether records were measured under conditions that allow a comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from dpbench import units
from dpbench.analysis.comparisons.matching import Matched, NotComparable
from dpbench.data.user_code import named_files
from dpbench.records.collectives import CollectiveRecord
from dpbench.records.environment import SYNTHETIC, SYNTHETIC_NOTE, Environment, comparable
from dpbench.records.trial import TrialRecord
from dpbench.specs import Labels, TrialSpec

NAMED = 8
"""Most configurations that a note names; the rest are counted."""

AnyRecord = TrialRecord | CollectiveRecord


def environment_notes(
    records: Sequence[AnyRecord], environments: Mapping[str, Environment], *, noun: str = "trial"
) -> tuple[str, ...]:
    """Notes on the environments of the records if there is more than one, and on their differences.

    They also name configurations whose replicas shared a core or a GPU.
    """
    used = dict.fromkeys(name for record in records for name in identifiers(record))
    notes = []
    if any(environment.launcher == SYNTHETIC for environment in environments.values()):
        notes.append(SYNTHETIC_NOTE)
    notes += _oversubscribed(records, environments)
    groups = Counter(comparable(record.environment_id) for record in records)
    if len(groups) > 1:
        listed = ", ".join(f"{identifier} ({count})" for identifier, count in groups.items())
        notes.insert(0, f"{noun}s come from {len(groups)} environments: {listed}")
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


def identifiers(record: AnyRecord) -> tuple[str, ...]:
    """Ids of the environments of all the record's hosts."""
    if isinstance(record, TrialRecord):
        return record.environment_ids
    return (record.environment_id,)


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
        spec = record.trial if isinstance(record, TrialRecord) else record.collective
        if spec.devices[0] == "cpu":
            nodes = spec.nodes if isinstance(spec, TrialSpec) else ()
            share = max(nodes, default=spec.group_size)
            needed, there = share * spec.threads_per_replica, environment.usable_cores
            what, where = "threads", "cores"
        else:
            places = spec.places if isinstance(spec, TrialSpec) else spec.devices
            needed, there = spec.group_size, len(set(places))
            what, where = "replicas", "GPUs"
        if needed > there:
            name = labels.configuration(spec) if isinstance(spec, TrialSpec) else spec.label
            found.setdefault((what, f"{there} {where}"), {})[name] = needed
    return [
        f"oversubscribed, {units.span([*needs.values()])} {what} on {where}: "
        f"{units.some_of([*needs], NAMED, 'configuration')}"
        for (what, where), needs in found.items()
    ]


def check_environments(matched: Matched, *, force: bool = False) -> tuple[str, ...]:
    """Notes on what may differ between the environments of the two sides; () if nothing does.

    Raises NotComparable if they differ in a way that forbids a comparison, unless `force`.
    """
    notes = [*_changed_files(matched)]
    (_, before), (_, after) = _environments(matched)
    if any(there.launcher == SYNTHETIC for there in (*before.values(), *after.values())):
        notes.insert(0, SYNTHETIC_NOTE)
    # Another commit is the reason for most comparisons.
    for name, words in (("git_commit", "git commits"), ("hostname", "hosts")):
        first, second = (
            dict.fromkeys(getattr(one, name) or "not known" for one in side.values())
            for side in (before, after)
        )
        if first and second and first.keys() != second.keys():
            notes.append(f"{words} differ: {', '.join(first)} -> {', '.join(second)}")
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
    sides = (matched.baseline, matched.candidate)
    (first, before), (second, after) = _environments(matched)
    if not first or not second or first.keys() == second.keys():
        return ()
    found = dict.fromkeys(
        f"environment {name} of {side.label} is not stored"
        for side, names in zip(sides, (first, second), strict=True)
        for name in names.values()
        if name not in side.environments
    )
    for one in before.values():
        for other in after.values():
            found |= dict.fromkeys(other.differences_from(one))
    return tuple(found)


def _environments(matched: Matched) -> list[tuple[dict[str, str], dict[str, Environment]]]:
    """The identifiers of either side, and those of its environments that are stored."""
    found = []
    for name in ("baseline", "candidate"):
        names = _identifiers(records for pair in matched.pairs for records in getattr(pair, name))
        stored = getattr(matched, name).environments
        found.append((names, {one: stored[one] for one in names.values() if one in stored}))
    return found


def _identifiers(records: Iterable[TrialRecord]) -> dict[str, str]:
    """The comparable part of every environment's id, with one full id that has it."""
    return {comparable(name): name for record in records for name in record.environment_ids}


def _changed_files(matched: Matched) -> dict[str, None]:
    """Changes in the content of the user's files, for pairs that name the same files."""
    found: dict[str, None] = {}
    for pair in matched.pairs:
        if not pair.baseline or not pair.candidate:
            continue
        before, now = pair.baseline[0].trial.workload, pair.candidate[0].trial.workload
        if before.files_sha256 != now.files_sha256 and named_files(now) == named_files(before):
            found[f"{named_files(now)} has changed between the two"] = None
    return found
