"""Matching of configurations of two sides: those that ran the same thing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter

from dpbench.analysis.configuration import usable_repetitions
from dpbench.codec import differing_fields
from dpbench.data.user_code import DIGITS
from dpbench.errors import DpbenchError, UnknownName, UsageError
from dpbench.records.environment import Environment
from dpbench.records.trial import TrialRecord
from dpbench.specs import (
    SETTINGS,
    WORKLOAD_SETTINGS,
    TrialSpec,
    series_name,
)
from dpbench.specs.shares import host_counts, on_hosts
from dpbench.specs.traits import IMPLEMENTATIONS, OPTIONAL_SETTINGS, place_of

Value = str | int | float
Key = tuple[Value | None, ...]

ONE_HOST = "one"
SELECT = "Select what to compare (DIR:backend=gloo), or --force"


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
    "nodes": lambda trial: host_counts(trial.nodes) or ONE_HOST,
    "batch_size": attrgetter("batch_size"),
    "scaling": attrgetter("scaling"),
    "device": lambda trial: trial.devices[0].partition(":")[0],
    "architecture": attrgetter("workload.architecture"),
    "dataset": attrgetter("workload.dataset"),
    **{name: _setting(name) for name in WORKLOAD_SETTINGS},
    "learning_rate": attrgetter("learning_rate"),
}
"""Settings that identify what was run, besides AMOUNTS. The number of repetitions and extra
measurements do not count; a scaling rule counts by its learning rate."""

AMOUNTS = ("warmup_steps", "timed_steps")
"""How long something was measured. They tell configurations apart where a side has several."""
COMMIT = "commit"
FILES = "files"
"""Key of the user's files, compared by hash."""
SELECTORS = (*IDENTITY, COMMIT, FILES)


class NotComparable(DpbenchError):
    """Two sides that must not be compared, or have nothing in common.

    `reason` is the message without its remedy, for commands that have another one.
    """

    exit_status = 5

    def __init__(self, reason: str, remedy: str | None = None) -> None:
        super().__init__(reason if remedy is None else f"{reason}. {remedy}")
        self.reason = reason


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One of the two compared things: the trials of a sweep, or some of them."""

    label: str
    records: tuple[TrialRecord, ...]
    """All records of the sweep; those outside the selection may be baselines."""
    environments: Mapping[str, Environment]
    where: Mapping[str, str] = field(default_factory=dict)
    """Selection of the records of this side: {"backend": "shm"}. Keys are `SELECTORS`."""
    source: str | None = None
    """The sweep's name. Sides of the same sweep are paired by repetition."""

    @property
    def fixed(self) -> frozenset[str]:
        """Keys that the selection fixes, so that the other side may differ in them."""
        fixed = set(self.where)
        if "group_size" in fixed:
            fixed.add("nodes")
        if "implementation" in fixed:
            fixed |= OPTIONAL_SETTINGS
            traits = IMPLEMENTATIONS.get(self.where["implementation"])
            if traits is not None and traits.backend is not None:
                fixed.add("backend")
        return frozenset(fixed)

    def selected(self) -> tuple[TrialRecord, ...]:
        """The records of the side; raises UnknownName or UsageError if there are none."""
        if not self.records:
            raise UsageError(f"{self.label} holds no trial that could be compared")
        chosen = self.records
        for key, text in self.where.items():
            if key not in SELECTORS:
                raise UnknownName(f"key in {self.label}:", key, SELECTORS)
            there = dict.fromkeys(self._value(key, record) for record in chosen)
            chosen = tuple(record for record in chosen if self._is_meant(key, text, record))
            if not chosen:
                known = ", ".join(sorted(there))
                raise UsageError(f"{self.label}: no trial has {key} {text!r}; there is {known}")
        return chosen

    def _is_meant(self, key: str, text: str, record: TrialRecord) -> bool:
        value = self._value(key, record)
        if key in (COMMIT, FILES):
            return value.startswith(text)
        setting = SETTINGS.get(key)  # earlier versions called such a value "default"
        return value == text or (
            text == "default" and setting is not None and value == setting.none
        )

    def _value(self, key: str, record: TrialRecord) -> str:
        if key == FILES:
            return (record.trial.workload.files_sha256 or "none")[:DIGITS]
        if key != COMMIT:
            return str(IDENTITY[key](record.trial))
        environment = self.environments.get(record.environment_id)
        return (environment and environment.git_commit) or "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """A configuration that ran on both sides: its valid trials by repetition."""

    label: str
    """Name on both sides; if they differ, the part in common."""
    candidate_configuration: str
    """Name on the candidate's side."""
    baseline: Mapping[int, TrialRecord]
    candidate: Mapping[int, TrialRecord]
    item: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Matched:
    """Matched pairs, and the configurations without a partner."""

    baseline: Side
    candidate: Side
    pairs: tuple[Pair, ...]
    only_in_baseline: tuple[str, ...]
    only_in_candidate: tuple[str, ...]
    put_aside: tuple[str, ...] = ()
    """Fields that were left out of the matching, since nothing agreed in them."""
    settled: tuple[str, ...] = ()
    """Differences of pairs in fields that a selection left open: "prefetch: resident -> 2"."""

    @property
    def forced(self) -> tuple[str, ...]:
        """A note on the fields that were left out by force; () if none was."""
        if not self.put_aside:
            return ()
        return (f"forced: compared although they differ in {', '.join(self.put_aside)}",)

    @property
    def same_sweep(self) -> bool:
        return _same_sweep(self.baseline, self.candidate)


def match(baseline: Side, candidate: Side, *, force: bool = False) -> Matched:
    """Pair the configurations of two sides that ran the same thing.

    Fields that a selection fixes on either side are not compared, nor are repetitions, nor numbers
    of steps unless a side has several. Raises NotComparable if no configuration is on both sides,
    naming the fields in which the sides have nothing in common; `force` leaves those out. Raises
    UsageError if a side has two configurations that the matching cannot distinguish, or if the
    sides share trials.
    """
    ours, theirs = baseline.selected(), candidate.selected()
    if _same_sweep(baseline, candidate) and {*map(id, ours)} & {*map(id, theirs)}:
        raise UsageError(
            f"{baseline.label} and {candidate.label} have trials in common; compare two folders, "
            "or two parts of one, e.g. DIR:backend=gloo DIR:backend=shm"
        )
    several = {name for name in AMOUNTS for side in (ours, theirs) if _has_several(name, side)}
    left_out = baseline.fixed | candidate.fixed | ({*AMOUNTS} - several)
    put_aside: tuple[str, ...] = ()
    first, second = _groups(baseline, ours, left_out), _groups(candidate, theirs, left_out)
    if not first.keys() & second.keys():
        put_aside = _nothing_in_common(ours, theirs, left_out)
        if not (force and put_aside):
            raise NotComparable(
                f"no configuration is in both {baseline.label} and {candidate.label}; "
                f"{_described(put_aside, ours, theirs)}",
                SELECT if put_aside else None,
            )
        left_out |= {*put_aside}
        first, second = _groups(baseline, ours, left_out), _groups(candidate, theirs, left_out)
    common = sorted(first.keys() & second.keys(), key=lambda key: _place(first[key]))
    return Matched(
        baseline=baseline,
        candidate=candidate,
        pairs=tuple(_pair(first[key], second[key]) for key in common),
        only_in_baseline=_labels(first, second),
        only_in_candidate=_labels(second, first),
        put_aside=put_aside,
        settled=_settled(
            first, second, left_out - {*baseline.where, *candidate.where, *put_aside, *AMOUNTS}
        ),
    )


def _has_several(name: str, records: Collection[TrialRecord]) -> bool:
    return len({IDENTITY[name](record.trial) for record in records}) > 1


def _settled(
    ours: Mapping[Key, Mapping[int, TrialRecord]],
    theirs: Mapping[Key, Mapping[int, TrialRecord]],
    names: Collection[str],
) -> tuple[str, ...]:
    """Differences between matched pairs, each mentioned once."""
    found: dict[str, None] = {}
    for key in ours.keys() & theirs.keys():
        first, second = (next(iter(side[key].values())).trial for side in (ours, theirs))
        for name in names:
            before, after = IDENTITY[name](first), IDENTITY[name](second)
            if before != after and first.implementation == second.implementation:
                found[f"{name}: {before} -> {after}"] = None
    return tuple(sorted(found))


def _same_sweep(baseline: Side, candidate: Side) -> bool:
    return baseline.source is not None and baseline.source == candidate.source


def _groups(
    side: Side, records: tuple[TrialRecord, ...], left_out: Collection[str]
) -> dict[Key, dict[int, TrialRecord]]:
    """Repetitions per configuration; if a trial was run again, its last record counts."""
    read = [value for name, value in IDENTITY.items() if name not in left_out]
    groups: dict[Key, dict[int, TrialRecord]] = {}
    for record in records:
        group = groups.setdefault(tuple(value(record.trial) for value in read), {})
        other = group.get(record.trial.repetition)
        if other is not None and other.trial != record.trial:
            raise UsageError(_ambiguous(side, other.trial, record.trial))
        group[record.trial.repetition] = record
    return groups


def _ambiguous(side: Side, first: TrialSpec, second: TrialSpec) -> str:
    labels = " and ".join(dict.fromkeys((first.label, second.label)))
    different = "; ".join(differing_fields(second, first))
    key = next((name for name, value in IDENTITY.items() if value(first) != value(second)), None)
    files = first.workload.files_sha256
    choice = None if key is None else f"{key}={IDENTITY[key](first)}"
    if choice is None and files is not None and files != second.workload.files_sha256:
        choice = f"{FILES}={files[:DIGITS]}"
    remedy = "No selection tells them apart"
    if choice is not None:
        remedy = f"Select one, e.g. {side.label}{',' if side.where else ':'}{choice}"
    return (
        f"{side.label} has more than one configuration that could be meant ({labels}); they differ "
        f"in {different}. {remedy}"
    )


def _nothing_in_common(
    ours: Collection[TrialRecord], theirs: Collection[TrialRecord], left_out: Collection[str]
) -> tuple[str, ...]:
    return tuple(
        name
        for name, value in IDENTITY.items()
        if name not in left_out
        and not {value(r.trial) for r in ours} & {value(r.trial) for r in theirs}
    )


def _described(
    names: Collection[str], ours: Collection[TrialRecord], theirs: Collection[TrialRecord]
) -> str:
    """A difference such as "learning_rate: 0.01 -> 0.1", in the form of `differences_from`."""

    def values(name: str, records: Collection[TrialRecord]) -> str:
        found = dict.fromkeys(IDENTITY[name](record.trial) for record in records)
        return ", ".join(map(str, found)) or "nothing"

    different = "; ".join(f"{n}: {values(n, ours)} -> {values(n, theirs)}" for n in names)
    if not different:
        return "each setting occurs on both sides, but never in the same combination"
    return f"they differ in {different}"


def _pair(baseline: Mapping[int, TrialRecord], candidate: Mapping[int, TrialRecord]) -> Pair:
    first, second = next(iter(baseline.values())), next(iter(candidate.values()))
    measured = [r for r in (*candidate.values(), *baseline.values()) if r.ranks]
    return Pair(
        label=_common_label(first.trial, second.trial),
        candidate_configuration=second.trial.label,
        baseline=_usable(baseline),
        candidate=_usable(candidate),
        item=(measured[0] if measured else second).item,
    )


def _usable(group: Mapping[int, TrialRecord]) -> dict[int, TrialRecord]:
    return {r.trial.repetition: r for r in usable_repetitions(list(group.values()))}


def _common_label(first: TrialSpec, second: TrialSpec) -> str:
    """The common name of both; if they differ, the part in common."""
    first, second = _named_alike(first, second)
    if first.label == second.label:
        return first.label
    backend = first.backend if first.backend == second.backend else None
    if first.implementation_label == second.implementation_label:
        parts = [series_name(first.implementation_label, backend)]
    elif first.implementation == second.implementation:
        parts = [series_name(first.implementation, backend)]
    else:
        parts = [backend or ""]
    if first.group_size == second.group_size:
        hosts = on_hosts(first.nodes) if first.nodes == second.nodes else ""
        parts[0] = f"{parts[0]} ×{first.group_size}{hosts}".strip()
    if first.batch_size == second.batch_size:
        parts.append(f"batch {first.batch_size}")
    return ", ".join(part for part in parts if part) or f"{first.label} -> {second.label}"


def _named_alike(first: TrialSpec, second: TrialSpec) -> tuple[TrialSpec, TrialSpec]:
    """Both, named by what they agree in of what either of their sweeps compares."""
    names = tuple(
        name
        for name in dict.fromkeys((*first.compared, *second.compared))
        if first.setting(name) == second.setting(name)
    )
    return replace(first, compared=names), replace(second, compared=names)


def _place(group: Mapping[int, TrialRecord]) -> tuple[object, ...]:
    """Sort key of tables: implementation as registered, backend, group size, batch size."""
    trial = next(iter(group.values())).trial
    label = place_of(trial.implementation_label)
    return label, trial.backend, trial.group_size, trial.batch_size


def _labels(
    groups: Mapping[Key, Mapping[int, TrialRecord]], others: Collection[Key]
) -> tuple[str, ...]:
    alone = sorted((g for key, g in groups.items() if key not in others), key=_place)
    return tuple(next(iter(group.values())).trial.label for group in alone)
