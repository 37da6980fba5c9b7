"""What may be compared: configurations of two sides that ran the same thing, measured under
conditions that allow it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter

from dpbench.analysis.repetitions import by_configuration, usable_repetitions
from dpbench.analysis.rows import order_of
from dpbench.codec import differing_fields
from dpbench.errors import NotComparable, UnknownName, UsageError
from dpbench.records.environment import Environment
from dpbench.records.trial import TrialRecord
from dpbench.specs import AXES, Configuration, Labels, plain_label, series_name
from dpbench.specs.labels import row_name
from dpbench.specs.nodes import node_counts
from dpbench.specs.traits import IMPLEMENTATIONS, OPTIONAL_SETTINGS

Typed = str | int | float
Identity = tuple[Typed, ...]
"""Values of settings that identify what was run."""
Records = tuple[TrialRecord, ...]


def _typed(name: str, configuration: Configuration) -> Typed:
    """A setting in the form in which it is typed; numbers of steps and the like stay numbers. A
    rule that scales the learning rate counts by the rate that it gives."""
    if name == "learning_rate":
        return configuration.scaled_learning_rate
    if name == "timed_steps" and configuration.window_seconds:
        return f"fill {configuration.window_seconds:g} s"
    value = configuration.setting(name)
    return value if type(value) is int else AXES[name].text(value)


IDENTITY: dict[str, Callable[[Configuration], Typed]] = {
    "implementation": attrgetter("implementation"),
    **{name: partial(_typed, name) for name in AXES},
    "backend": attrgetter("backend"),
    "group_size": attrgetter("group_size"),
    "nodes": lambda configuration: node_counts(configuration.replicas_by_node) or "one",
    "batch_size": attrgetter("batch_size"),
    "device": lambda configuration: configuration.devices[0].partition(":")[0],
    "dataset": attrgetter("workload.dataset"),
}
"""Settings that identify what was run. The number of repetitions and extra measurements do not
count."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One of the two compared things: the trials of a sweep, or some of them."""

    label: str
    records: Records
    """All records of the sweep."""
    environments: Mapping[str, Environment]
    where: Mapping[str, str] = field(default_factory=dict)
    """Selection of the records of this side: {"backend": "shm"}. Keys are those of `IDENTITY`."""
    passes: str | None = None
    """Name of the passes in which it was measured. Sides of the same passes are compared within
    each repetition."""

    def selected(self) -> Records:
        """The records of the side; raises UnknownName or UsageError if there are none."""
        if not self.records:
            raise UsageError(f"{self.label} holds no trial that could be compared")
        chosen = self.records
        for key, text in self.where.items():
            if key not in IDENTITY:
                raise UnknownName(f"key in {self.label}", key, IDENTITY)
            known = {str(IDENTITY[key](record.trial)) for record in chosen}
            chosen = tuple(r for r in chosen if str(IDENTITY[key](r.trial)) == text)
            if not chosen:
                there = ", ".join(sorted(known))
                raise UsageError(f"{self.label}: no trial has {key} {text!r}; there is {there}")
        return chosen


@dataclass(frozen=True, kw_only=True, slots=True)
class Matched:
    """The configurations that ran on both sides, and those without a partner."""

    baseline: Side
    candidate: Side
    same_passes: bool
    """Whether both sides ran in the same passes."""
    rows: tuple[tuple[str, Records, Records], ...]
    """For each configuration its name, and the usable repetitions of the baseline and of the
    candidate. Names are those on both sides; if they differ, the part in common, or the
    candidate's."""
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
    same_passes = baseline.passes is not None and baseline.passes == candidate.passes
    measured = {record.trial: record for record in ours}
    if same_passes and any(measured.get(record.trial) == record for record in theirs):
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
        if any(trait.backend is not None for trait in traits):
            fixed.add("backend")
    keys = [name for name in IDENTITY if name not in fixed]
    first, second = _configurations(baseline, keys), _configurations(candidate, keys)
    if not first.keys() & second.keys():
        columns = (map(dict.fromkeys, zip(*side, strict=True)) for side in (first, second))
        listed = [
            f"{key}: {', '.join(map(str, before))} -> {', '.join(map(str, now))}"
            for key, before, now in zip(keys, *columns, strict=True)
            if not before.keys() & now.keys()
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

    ordered = sorted(
        configurations,
        key=lambda key: order_of(configurations[key], labels.implementation(configurations[key])),
    )
    both = [(first[key], second[key]) for key in ordered if key in first and key in second]
    label_of = {key: labels.label(configuration) for key, configuration in configurations.items()}
    return Matched(
        baseline=baseline,
        candidate=candidate,
        same_passes=same_passes,
        rows=tuple(
            (
                labels.label(now[0].trial)
                if by_candidate
                else _common_label(before[0].trial, now[0].trial, labels),
                usable_repetitions(before),
                usable_repetitions(now),
            )
            for before, now in both
        ),
        only_in_baseline=tuple(label_of[key] for key in ordered if key not in second),
        only_in_candidate=tuple(label_of[key] for key in ordered if key not in first),
    )


def _configurations(side: Side, keys: Sequence[str]) -> dict[Identity, list[TrialRecord]]:
    """The repetitions of each configuration of a side by its values of these keys."""
    found: dict[Identity, list[TrialRecord]] = {}
    for configuration, repetitions in by_configuration(side.selected()).items():
        identity = tuple(IDENTITY[key](configuration) for key in keys)
        if identity in found:
            earlier = found[identity][0].trial.configuration
            labels = " and ".join(dict.fromkeys(map(plain_label, (earlier, configuration))))
            raise UsageError(
                f"{side.label} has more than one configuration that could be meant ({labels}); "
                f"they differ in {'; '.join(differing_fields(configuration, earlier))}; "
                "select one with DIR:key=value"
            )
        found[identity] = repetitions
    return found


def _common_label(first: Configuration, second: Configuration, labels: Labels) -> str:
    """The parts of a configuration's name in which both agree: the settings that are told, the
    backend, the sizes."""
    agreed = Labels(
        tuple(name for name in labels.several if first.setting(name) == second.setting(name))
    )

    names = {agreed.implementation(side) for side in (first, second)}
    name = first.implementation if first.implementation == second.implementation else ""
    name = names.pop() if len(names) == 1 else name
    read = attrgetter("backend", "group_size", "replicas_by_node", "batch_size")
    backend, size, nodes, batch = (
        a if a == b else None for a, b in zip(read(first), read(second), strict=True)
    )
    series = series_name(name, backend) if name else backend or ""
    whole = f"{agreed.label(first)} -> {agreed.label(second)}"
    return row_name(series, size, nodes or (), batch) or whole
