"""What differs between the environments of trials, and whether that forbids a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from dpbench import units
from dpbench.analysis.comparisons.matching import Matched
from dpbench.analysis.rows import MAX_LISTED
from dpbench.architecture.user_files import named_files
from dpbench.errors import NotComparable
from dpbench.messages import option_words
from dpbench.records.environment import Environment, comparable_part
from dpbench.records.trial import TrialRecord
from dpbench.specs import Labels


def environment_notes(
    records: Sequence[TrialRecord], environments: Mapping[str, Environment]
) -> tuple[str, ...]:
    """Notes on the differences between the environments of the records, and on configurations whose
    replicas shared a core or a GPU."""
    used = dict.fromkeys(name for record in records for name in record.environment_ids)
    known = [environments[name] for name in used if name in environments]
    notes = _oversubscribed(records, environments)
    if (count := len({*map(comparable_part, used)})) > 1:
        differences = dict.fromkeys(d for e in known[1:] for d in e.differences_from(known[0]))
        listed = "; ".join(differences) or "one of them is not stored"
        notes.append(f"trials ran in {count} environments: {listed}")
    commits = dict.fromkeys(environment.git_commit or "none" for environment in known)
    if len(commits) > 1:
        notes.append(f"trials come from {len(commits)} git commits: {', '.join(commits)}")
    return tuple(notes)


def _oversubscribed(
    records: Sequence[TrialRecord], environments: Mapping[str, Environment]
) -> list[str]:
    """One line for each resource that is oversubscribed; cores are those of one node."""
    labels = Labels.among(record.trial for record in records)
    oversubscribed: dict[tuple[str, str], dict[str, int]] = {}
    for record in records:
        environment, trial = environments.get(record.environment_ids[0]), record.trial
        if environment is None or not record.ranks:
            continue
        if trial.devices[0] == "cpu":
            on_one_node = max(trial.replicas_by_node, default=trial.group_size)
            needed, there = on_one_node * trial.threads_per_replica, environment.usable_cores
            what, where = "threads", "cores"
        else:
            needed, there = trial.group_size, len({*trial.node_devices})
            what, where = "replicas", "GPUs"
        if needed > there:
            named = oversubscribed.setdefault((what, f"{there} {where}"), {})
            named[labels.label(trial)] = needed
    return [
        f"oversubscribed, {units.span([*needs.values()])} {what} on {where}: "
        f"{units.some_of([*needs], MAX_LISTED, 'configuration')}"
        for (what, where), needs in oversubscribed.items()
    ]


def compare_environments(
    matched: Matched, *, force: bool = False
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Differences between the environments of the two sides that forbid a comparison, such as
    "cpu: A -> B", and notes on others, such as the commit and the host; () if there are none.

    Sides that mix the same environments do not differ. Raises NotComparable if there are
    differences, unless `force`.
    """
    sides = (matched.baseline, matched.candidate)
    # By the comparable part of their ids; None for those that are not stored.
    before, after = (
        {
            comparable_part(name): side.environments.get(name)
            for record in side.selected()
            for name in record.environment_ids
        }
        for side in sides
    )
    # torch's class of process group behind each backend, where ranks have a group.
    groups = [
        {
            record.trial.backend: rank.group_class
            for record in side.selected()
            for rank in record.ranks
            if rank.group_class
        }
        for side in sides
    ]
    differences: dict[str, None] = {}
    if before.keys() != after.keys():
        for first, second in product(before.values(), after.values()):
            if first is None or second is None:
                differences["not all of them are stored"] = None
            else:
                differences |= dict.fromkeys(second.differences_from(first))
        for backend in groups[0].keys() & groups[1].keys():
            then, now = (classes[backend] for classes in groups)
            if then != now:
                differences[f"process group {then} -> {now}"] = None
    if differences and not force:
        raise NotComparable(
            f"{matched.baseline.label} and {matched.candidate.label} come from different "
            f"environments: {'; '.join(differences)}. {option_words('force', True)} compares them "
            "nevertheless"
        )
    known = [[e for e in side.values() if e] for side in (before, after)]
    notes: dict[str, None] = {}
    for row in matched.rows:
        if row.baseline and row.candidate:
            old, new = row.baseline[0].trial.workload, row.candidate[0].trial.workload
            if old.files_sha256 != new.files_sha256 and named_files(new) == named_files(old):
                notes[f"{named_files(new)} has changed between the two"] = None
    # Another commit is the reason for most comparisons.
    for name, words in (("git_commit", "git commits"), ("hostname", "hosts")):
        old_names, new_names = (
            dict.fromkeys(getattr(environment, name) or "not known" for environment in side)
            for side in known
        )
        if old_names and new_names and old_names.keys() != new_names.keys():
            notes[f"{words} differ: {', '.join(old_names)} -> {', '.join(new_names)}"] = None
    return tuple(differences), tuple(notes)
