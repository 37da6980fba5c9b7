"""Matching of configurations of two sides: those that ran the same thing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter

from dpbench.analysis.repetitions import usable_repetitions
from dpbench.codec import differing_fields
from dpbench.errors import DpbenchError, UnknownName, UsageError
from dpbench.records.environment import Environment
from dpbench.records.trial import TrialRecord
from dpbench.specs import SETTINGS, WORKLOAD_SETTINGS, Labels, TrialSpec, plain_label, series_name
from dpbench.specs.shares import host_counts, on_hosts
from dpbench.specs.traits import IMPLEMENTATIONS, OPTIONAL_SETTINGS, implementation_order

Value = str | int | float
Group = Mapping[int, TrialRecord]
"""The trials of a configuration, by repetition."""
Groups = Mapping[tuple[Value, ...], Group]
"""The configurations of a side, by what identifies them."""


def _setting(name: str) -> Callable[[TrialSpec], Value]:
    """A reader of a setting in the form in which it is typed; numbers of steps and the like stay
    numbers."""
    return lambda trial: (
        value if type(value := trial.setting(name)) is int else SETTINGS[name].text(value)
    )


IDENTITY: dict[str, Callable[[TrialSpec], Value]] = {
    "implementation": attrgetter("implementation"),
    **{name: _setting(name) for name in SETTINGS if name not in WORKLOAD_SETTINGS},
    "backend": attrgetter("backend"),
    "group_size": attrgetter("group_size"),
    "nodes": lambda trial: host_counts(trial.nodes) or "one",
    "batch_size": attrgetter("batch_size"),
    "scaling": attrgetter("scaling"),
    "device": lambda trial: trial.devices[0].partition(":")[0],
    "architecture": attrgetter("workload.architecture"),
    "dataset": attrgetter("workload.dataset"),
    **{name: _setting(name) for name in WORKLOAD_SETTINGS},
    "learning_rate": attrgetter("learning_rate"),
    "timed_steps": lambda trial: trial.fixed_steps or f"fill {trial.window_seconds:g} s",
}
"""Settings that identify what was run. The number of repetitions and extra measurements do not
count; a scaling rule counts by its learning rate."""


class NotComparable(DpbenchError):
    """Two sides that must not be compared, or have nothing in common."""

    exit_status = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One of the two compared things: the trials of a sweep, or some of them."""

    label: str
    records: tuple[TrialRecord, ...]
    """All records of the sweep; those outside the selection may be baselines."""
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
                raise UnknownName(f"key in {self.label}:", key, IDENTITY)
            values = [str(IDENTITY[key](record.trial)) for record in chosen]
            chosen = tuple(
                record for record, value in zip(chosen, values, strict=True) if value == text
            )
            if not chosen:
                known = ", ".join(sorted({*values}))
                raise UsageError(f"{self.label}: no trial has {key} {text!r}; there is {known}")
        return chosen


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """A configuration that ran on both sides: its valid trials by repetition."""

    label: str
    """Name on both sides; if they differ, the part in common."""
    candidate_configuration: str
    """Name on the candidate's side."""
    baseline: Group
    candidate: Group
    item: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Matched:
    """Matched pairs, and the configurations without a partner."""

    baseline: Side
    candidate: Side
    pairs: tuple[Pair, ...]
    only_in_baseline: tuple[str, ...]
    only_in_candidate: tuple[str, ...]

    @property
    def same_sweep(self) -> bool:
        return self.baseline.source is not None and self.baseline.source == self.candidate.source


def match(baseline: Side, candidate: Side) -> Matched:
    """Pair the configurations of two sides that ran the same thing.

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
    left_out = _fixed(baseline, candidate)
    compared = {name: read for name, read in IDENTITY.items() if name not in left_out}
    first, second = (
        _groups(side.label, records, compared)
        for side, records in ((baseline, ours), (candidate, theirs))
    )
    labels = Labels.among(record.trial for record in (*ours, *theirs))
    place = partial(_place, labels)
    common = sorted(first.keys() & second.keys(), key=lambda key: place(first[key]))
    if not common:
        raise NotComparable(
            f"no configuration is in both {baseline.label} and {candidate.label}; "
            + _differences(
                {name: (_values(name, ours), _values(name, theirs)) for name in compared}
            )
        )
    return Matched(
        baseline=baseline,
        candidate=candidate,
        pairs=tuple(_pair(first[key], second[key], labels) for key in common),
        only_in_baseline=_labels(first, second, labels),
        only_in_candidate=_labels(second, first, labels),
    )


def _differences(values: Mapping[str, tuple[list[Value], list[Value]]]) -> str:
    """The fields in which two sides have nothing in common."""
    listed = [
        f"{name}: {', '.join(map(str, one))} -> {', '.join(map(str, other))}"
        for name, (one, other) in values.items()
        if not {*one} & {*other}
    ]
    if not listed:
        return "each setting occurs on both sides, but never in the same combination"
    return f"they differ in {'; '.join(listed)}"


def _fixed(baseline: Side, candidate: Side) -> set[str]:
    """Fields in which the sides may differ: those that a selection names, and what follows from
    them."""
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
    return fixed


def _values(name: str, records: Collection[TrialRecord]) -> list[Value]:
    return [*dict.fromkeys(IDENTITY[name](record.trial) for record in records)]


def _groups(
    label: str,
    records: Collection[TrialRecord],
    compared: Mapping[str, Callable[[TrialSpec], Value]],
) -> Groups:
    """Repetitions per configuration; if a trial was run again, its last record counts."""
    groups: dict[tuple[Value, ...], dict[int, TrialRecord]] = {}
    for record in records:
        key = tuple(read(record.trial) for read in compared.values())
        group = groups.setdefault(key, {})
        other = group.get(record.trial.repetition)
        if other is not None and other.trial != record.trial:
            labels = " and ".join(dict.fromkeys(map(plain_label, (other.trial, record.trial))))
            raise UsageError(
                f"{label} has more than one configuration that could be meant ({labels}); they "
                f"differ in {'; '.join(differing_fields(record.trial, other.trial))}; "
                "select one with DIR:key=value"
            )
        group[record.trial.repetition] = record
    return groups


def _pair(baseline: Group, candidate: Group, labels: Labels) -> Pair:
    first, second = next(iter(baseline.values())), next(iter(candidate.values()))
    measured = [r for r in (*candidate.values(), *baseline.values()) if r.ranks]
    usable = (
        {r.trial.repetition: r for r in usable_repetitions([*group.values()])}
        for group in (baseline, candidate)
    )
    return Pair(
        label=_common_label(first.trial, second.trial, labels),
        candidate_configuration=labels.configuration(second.trial),
        baseline=next(usable),
        candidate=next(usable),
        item=(measured[0] if measured else second).item,
    )


def _common_label(first: TrialSpec, second: TrialSpec, labels: Labels) -> str:
    """The common name of both; if they differ, the part in common.

    Of the settings with several values it tells those in which the two agree.
    """
    agreed = (name for name in labels.several if first.setting(name) == second.setting(name))
    labels = Labels(tuple(agreed))
    name, other = labels.configuration(first), labels.configuration(second)
    if name == other:
        return name
    backend = first.backend if first.backend == second.backend else None
    label = backend or ""
    if first.implementation == second.implementation:
        settings = {labels.implementation(trial) for trial in (first, second)}
        common = first.implementation if len(settings) > 1 else settings.pop()
        label = series_name(common, backend)
    if first.group_size == second.group_size:
        hosts = on_hosts(first.nodes) if first.nodes == second.nodes else ""
        label = f"{label} ×{first.group_size}{hosts}".strip()
    batch = f"batch {first.batch_size}" if first.batch_size == second.batch_size else ""
    batch = "" if not first.batch_size else batch
    return ", ".join(filter(None, (label, batch))) or f"{name} -> {other}"


def _place(labels: Labels, group: Group) -> tuple[object, ...]:
    """Sort key of tables: implementation as registered, backend, group size, batch size."""
    trial = next(iter(group.values())).trial
    order = implementation_order(trial.implementation, labels.implementation(trial))
    return order, trial.backend, trial.group_size, trial.batch_size


def _labels(groups: Groups, others: Groups, labels: Labels) -> tuple[str, ...]:
    alone = [group for key, group in groups.items() if key not in others]
    trials = (
        next(iter(group.values())).trial for group in sorted(alone, key=partial(_place, labels))
    )
    return tuple(map(labels.configuration, trials))
