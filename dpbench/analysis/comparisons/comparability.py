"""Whether records were measured under conditions that allow a comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from dpbench import units
from dpbench.analysis.comparisons.matching import Matched, NotComparable, Side
from dpbench.data.user_code import change_words, named_files
from dpbench.records.collectives import CollectiveRecord, CollectiveSpec
from dpbench.records.environment import SYNTHETIC, SYNTHETIC_NOTE, Environment, comparable
from dpbench.records.trial import TrialRecord
from dpbench.specs import TrialSpec

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
        f"oversubscribed, {units.span(needs.values())} {what} on {there}: "
        f"{_configurations([*needs])}"
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
    sizes = units.span(spec.group_size for spec in specs)
    return f"{len(labels):,} configurations of group size {sizes}"


def check_environments(matched: Matched, *, force: bool = False) -> tuple[str, ...]:
    """Notes on the environments of the two sides; () if all are alike.

    Raises NotComparable if they differ in a way that forbids a comparison, unless `force`.
    """
    notes = (*_synthetic(matched), *_files(matched), *_changed(matched), *_mixed(matched))
    differences = environment_differences(matched)
    if not differences:
        return notes
    found = (
        f"{matched.baseline.label} and {matched.candidate.label} come from different environments: "
        f"{'; '.join(differences)}"
    )
    if not force:
        raise NotComparable(f"{found}. --force compares them nevertheless")
    return (*notes, found)


def environment_differences(matched: Matched) -> tuple[str, ...]:
    """Differences between the environments of the pairs: "cpu: A -> B"; () if there are none.

    The commit and the host may differ. An environment that is not stored counts as equal.
    """
    first, second = _identifiers(matched)
    if not first or not second or first.keys() == second.keys():
        return ()
    return tuple(
        dict.fromkeys(
            difference
            for one, baseline_id in first.items()
            for other, candidate_id in second.items()
            if one != other
            for difference in _differences(matched, baseline_id, candidate_id)
        )
    )


def _synthetic(matched: Matched) -> list[str]:
    if any(there.launcher == SYNTHETIC for side in _environments(matched) for there in side):
        return [SYNTHETIC_NOTE]
    return []


def _files(matched: Matched) -> list[str]:
    """Changes in the content of the user's files, for pairs that name the same files."""
    found: dict[str, None] = {}
    for pair in matched.pairs:
        sides = (pair.baseline.values(), pair.candidate.values())
        before, now = (next((record.trial.workload for record in side), None) for side in sides)
        if before is None or now is None or before.files_sha256 == now.files_sha256:
            continue
        if named_files(now) == named_files(before):
            found[change_words(before, now, "between the two")] = None
    return [*found]


def _changed(matched: Matched) -> list[str]:
    """Differences that are allowed: another commit is the reason for most comparisons."""
    before, after = _environments(matched)
    notes = []
    for name, words in (("git_commit", "git commits"), ("hostname", "hosts")):
        first, second = (
            dict.fromkeys(getattr(environment, name) or "not known" for environment in side)
            for side in (before, after)
        )
        if first and second and first.keys() != second.keys():
            notes.append(f"{words} differ: {', '.join(first)} -> {', '.join(second)}")
    return notes


def _mixed(matched: Matched) -> list[str]:
    """Notes on two sides that mix the same environments, possibly in other proportions."""
    first, second = _identifiers(matched)
    if len(first) < 2 or first.keys() != second.keys():
        return []
    return [
        f"both sides mix {len(first)} environments ({', '.join(first)}): a difference may be theirs"
    ]


def _environments(matched: Matched) -> tuple[list[Environment], list[Environment]]:
    """The stored environments of the pairs, for each side."""

    def stored(side: Side, identifiers: Mapping[str, str]) -> list[Environment]:
        return [side.environments[i] for i in identifiers.values() if i in side.environments]

    first, second = _identifiers(matched)
    return stored(matched.baseline, first), stored(matched.candidate, second)


def _identifiers(matched: Matched) -> tuple[dict[str, str], dict[str, str]]:
    """The comparable part of every environment's id, with one full id that has it."""

    def of_side(side: Iterable[Mapping[int, TrialRecord]]) -> dict[str, str]:
        records = (record for repetitions in side for record in repetitions.values())
        return {comparable(name): name for record in records for name in record.environment_ids}

    pairs = matched.pairs
    return of_side(pair.baseline for pair in pairs), of_side(pair.candidate for pair in pairs)


def _differences(matched: Matched, baseline_id: str, candidate_id: str) -> list[str]:
    missing = [
        f"environment {identifier} of {side.label} is not stored"
        for side, identifier in (
            (matched.baseline, baseline_id),
            (matched.candidate, candidate_id),
        )
        if identifier not in side.environments
    ]
    if missing:
        return missing
    candidate = matched.candidate.environments[candidate_id]
    return candidate.differences_from(matched.baseline.environments[baseline_id])
