"""What may be compared: configurations of two sides that ran the same thing, measured under
conditions that allow it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from operator import attrgetter

from dpbench import units
from dpbench.analysis.repetitions import usable_repetitions
from dpbench.analysis.rows import MOST_LISTED
from dpbench.codec import differing_fields
from dpbench.data.user_code import named_files
from dpbench.errors import NotComparable, UnknownName, UsageError
from dpbench.records.environment import Environment, comparable_part
from dpbench.records.trial import TrialRecord
from dpbench.specs import (
    AXES,
    WORKLOAD_SETTINGS,
    Configuration,
    Labels,
    plain_label,
    series_name,
)
from dpbench.specs.labels import implementation_order
from dpbench.specs.nodes import node_counts, on_nodes
from dpbench.specs.traits import IMPLEMENTATIONS, OPTIONAL_SETTINGS

Typed = str | int | float
Identity = tuple[Typed, ...]
"""Values of settings that identify what was run."""


def _setting(name: str) -> Callable[[Configuration], Typed]:
    """A reader of a setting in the form in which it is typed; numbers of steps and the like stay
    numbers."""
    return lambda configuration: (
        value if type(value := configuration.setting(name)) is int else AXES[name].text(value)
    )


IDENTITY: dict[str, Callable[[Configuration], Typed]] = {
    "implementation": attrgetter("implementation"),
    **{name: _setting(name) for name in AXES if name not in WORKLOAD_SETTINGS},
    "backend": attrgetter("backend"),
    "group_size": attrgetter("group_size"),
    "nodes": lambda configuration: node_counts(configuration.replicas_by_node) or "one",
    "batch_size": attrgetter("batch_size"),
    "scaling": attrgetter("scaling"),
    "device": lambda configuration: configuration.devices[0].partition(":")[0],
    "architecture": attrgetter("workload.architecture"),
    "dataset": attrgetter("workload.dataset"),
    **{name: _setting(name) for name in WORKLOAD_SETTINGS},
    "learning_rate": attrgetter("learning_rate"),
    "timed_steps": lambda configuration: (
        f"fill {configuration.window_seconds:g} s"
        if configuration.window_seconds
        else configuration.timed_steps
    ),
}
"""Settings that identify what was run. The number of repetitions and extra measurements do not
count; a scaling rule counts by its learning rate."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One of the two compared things: the trials of a sweep, or some of them."""

    label: str
    records: tuple[TrialRecord, ...]
    """All records of the sweep."""
    environments: Mapping[str, Environment]
    where: Mapping[str, str] = field(default_factory=dict)
    """Selection of the records of this side: {"backend": "shm"}. Keys are those of `IDENTITY`."""
    source: str | None = None
    """The sweep's name. Sides of the same sweep are paired by repetition."""

    def selected(self) -> tuple[TrialRecord, ...]:
        """The records of the side; raises UnknownName or UsageError if there are none."""
        if not self.records:
            raise UsageError(f"{self.label} holds no trial that could be compared")
        chosen = self.records
        for key, text in self.where.items():
            if key not in IDENTITY:
                raise UnknownName(f"key in {self.label}", key, IDENTITY)
            known = {str(IDENTITY[key](record.trial)) for record in chosen}
            chosen = tuple(one for one in chosen if str(IDENTITY[key](one.trial)) == text)
            if not chosen:
                there = ", ".join(sorted(known))
                raise UsageError(f"{self.label}: no trial has {key} {text!r}; there is {there}")
        return chosen


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """A configuration that ran on both sides, with its usable repetitions."""

    label: str
    """Name on both sides; if they differ, the part in common, or the candidate's name."""
    baseline: tuple[TrialRecord, ...]
    candidate: tuple[TrialRecord, ...]

    @property
    def item(self) -> str:
        """What was counted: images, tokens; samples if no repetition is usable."""
        return next((record.item for record in (*self.candidate, *self.baseline)), "samples")


@dataclass(frozen=True, kw_only=True, slots=True)
class Matched:
    """Matched pairs, and the configurations without a partner."""

    baseline: Side
    candidate: Side
    same_sweep: bool
    """Whether both sides ran in the same passes."""
    pairs: tuple[Pair, ...]
    only_in_baseline: tuple[str, ...]
    only_in_candidate: tuple[str, ...]


def match(baseline: Side, candidate: Side, *, by_candidate: bool = False) -> Matched:
    """Pair the configurations of two sides that ran the same thing, with the names that they have
    in common, or those `by_candidate`.

    Fields that a selection fixes on either side are not compared, nor are repetitions. Raises
    NotComparable if no configuration is on both sides, naming the fields in which the sides have
    nothing in common, and UsageError if a side has two configurations that the matching cannot
    distinguish, or if the sides share trials.
    """
    ours, theirs = baseline.selected(), candidate.selected()
    same_sweep = baseline.source is not None and baseline.source == candidate.source
    measured = {record.trial: record for record in ours}
    if same_sweep and any(measured.get(record.trial) == record for record in theirs):
        raise UsageError(
            f"{baseline.label} and {candidate.label} have trials in common; compare two folders, "
            "or two parts of one, e.g. DIR:backend=gloo DIR:backend=shm"
        )
    # The sides may differ in what a selection names, and in what follows from that.
    fixed = {*baseline.where, *candidate.where}
    if "group_size" in fixed:
        fixed.add("nodes")
    names = {side.where.get("implementation") for side in (baseline, candidate)}
    if len(names) > 1:
        # Other implementations have other options.
        fixed |= OPTIONAL_SETTINGS
        traits = [IMPLEMENTATIONS[name] for name in names if name in IMPLEMENTATIONS]
        if any(one.backend is not None for one in traits):
            fixed.add("backend")
    keys = [name for name in IDENTITY if name not in fixed]
    first, second = _configurations(baseline, keys), _configurations(candidate, keys)
    if not first.keys() & second.keys():
        columns = (map(dict.fromkeys, zip(*side, strict=True)) for side in (first, second))
        listed = [
            f"{key}: {', '.join(map(str, one))} -> {', '.join(map(str, other))}"
            for key, one, other in zip(keys, *columns, strict=True)
            if not one.keys() & other.keys()
        ]
        why = f"they differ in {'; '.join(listed)}"
        if not listed:
            why = "each setting occurs on both sides, but never in the same combination"
        raise NotComparable(
            f"no configuration is in both {baseline.label} and {candidate.label}; {why}"
        )
    labels = Labels.among(record.trial for record in (*ours, *theirs))
    configurations = {
        identity: records[0].trial.configuration for identity, records in (second | first).items()
    }

    def order(identity: Identity) -> tuple[object, ...]:
        one = configurations[identity]
        place = implementation_order(one.implementation, labels.implementation(one))
        return place, one.backend, one.group_size, one.batch_size

    ordered = sorted(configurations, key=order)
    both = [(first[one], second[one]) for one in ordered if one in first and one in second]
    told = {identity: labels.label(one) for identity, one in configurations.items()}
    return Matched(
        baseline=baseline,
        candidate=candidate,
        same_sweep=same_sweep,
        pairs=tuple(
            Pair(
                label=labels.label(now[0].trial)
                if by_candidate
                else _common_label(before[0].trial, now[0].trial, labels),
                baseline=usable_repetitions(before),
                candidate=usable_repetitions(now),
            )
            for before, now in both
        ),
        only_in_baseline=tuple(told[one] for one in ordered if one not in second),
        only_in_candidate=tuple(told[one] for one in ordered if one not in first),
    )


def _configurations(side: Side, keys: Sequence[str]) -> dict[Identity, list[TrialRecord]]:
    """The configurations of a side by these keys: the last record of each repetition."""
    groups: dict[Identity, dict[int, TrialRecord]] = {}
    for record in side.selected():
        group = groups.setdefault(tuple(IDENTITY[key](record.trial) for key in keys), {})
        other = next(iter(group.values()), record)
        one, another = other.trial.configuration, record.trial.configuration
        if one != another:
            labels = " and ".join(dict.fromkeys(map(plain_label, (one, another))))
            raise UsageError(
                f"{side.label} has more than one configuration that could be meant ({labels}); "
                f"they differ in {'; '.join(differing_fields(another, one))}; "
                "select one with DIR:key=value"
            )
        group[record.trial.repetition] = record
    return {identity: [*group.values()] for identity, group in groups.items()}


def _common_label(first: Configuration, second: Configuration, labels: Labels) -> str:
    """The parts of a configuration's name in which both agree: the settings that are told, the
    backend, the sizes."""
    agreed = Labels(
        tuple(name for name in labels.several if first.setting(name) == second.setting(name))
    )

    def parts(one: Configuration) -> tuple[str, ...]:
        batch = f"batch {one.batch_size}" if one.batch_size else ""
        size, nodes = f"×{one.group_size}", on_nodes(one.replicas_by_node)
        return agreed.implementation(one), one.backend, size, nodes, batch

    pairs = zip(parts(first), parts(second), strict=True)
    told, backend, size, nodes, batch = (one if one == other else "" for one, other in pairs)
    if first.implementation == second.implementation:
        told = told or first.implementation
    series = series_name(told, backend or None) if told else backend
    whole = f"{agreed.label(first)} -> {agreed.label(second)}"
    where = f"{series} {size}{nodes if size else ''}".strip()
    return ", ".join(filter(None, (where, batch))) or whole


def environment_notes(
    records: Sequence[TrialRecord], environments: Mapping[str, Environment]
) -> tuple[str, ...]:
    """Notes on the differences between the environments of the records, and on configurations whose
    replicas shared a core or a GPU."""
    used = dict.fromkeys(name for record in records for name in record.environment_ids)
    known = [environments[name] for name in used if name in environments]
    notes = _oversubscribed(records, environments)
    if (count := len({*map(comparable_part, used)})) > 1:
        found = dict.fromkeys(d for one in known[1:] for d in one.differences_from(known[0]))
        listed = "; ".join(found) or "one of them is not stored"
        notes.append(f"trials ran in {count} environments: {listed}")
    commits = dict.fromkeys(one.git_commit or "none" for one in known)
    if len(commits) > 1:
        notes.append(f"trials come from {len(commits)} git commits: {', '.join(commits)}")
    return tuple(notes)


def _oversubscribed(
    records: Sequence[TrialRecord], environments: Mapping[str, Environment]
) -> list[str]:
    """One line for each resource that is oversubscribed; cores are those of one node."""
    labels = Labels.among(record.trial for record in records)
    found: dict[tuple[str, str], dict[str, int]] = {}
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
            named = found.setdefault((what, f"{there} {where}"), {})
            named[labels.label(trial)] = needed
    return [
        f"oversubscribed, {units.span([*needs.values()])} {what} on {where}: "
        f"{units.some_of([*needs], MOST_LISTED, 'configuration')}"
        for (what, where), needs in found.items()
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
    found: dict[str, None] = {}
    if before.keys() != after.keys():
        for one, other in product(before.values(), after.values()):
            if one is None or other is None:
                found["not all of them are stored"] = None
            else:
                found |= dict.fromkeys(other.differences_from(one))
        for backend in groups[0].keys() & groups[1].keys():
            then, now = (classes[backend] for classes in groups)
            if then != now:
                found[f"process group {then} -> {now}"] = None
    if found and not force:
        raise NotComparable(
            f"{matched.baseline.label} and {matched.candidate.label} come from different "
            f"environments: {'; '.join(found)}. --force compares them nevertheless"
        )
    known = [[one for one in side.values() if one] for side in (before, after)]
    notes: dict[str, None] = {}
    for pair in matched.pairs:
        if pair.baseline and pair.candidate:
            old, new = pair.baseline[0].trial.workload, pair.candidate[0].trial.workload
            if old.files_sha256 != new.files_sha256 and named_files(new) == named_files(old):
                notes[f"{named_files(new)} has changed between the two"] = None
    # Another commit is the reason for most comparisons.
    for name, words in (("git_commit", "git commits"), ("hostname", "hosts")):
        first, second = (
            dict.fromkeys(getattr(one, name) or "not known" for one in side) for side in known
        )
        if first and second and first.keys() != second.keys():
            notes[f"{words} differ: {', '.join(first)} -> {', '.join(second)}"] = None
    return tuple(found), tuple(notes)
