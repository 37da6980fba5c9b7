"""A side of a comparison: trials of a sweep, and the settings that identify what they ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from dpbench.analysis.rows import by_configuration
from dpbench.codec import differing_fields
from dpbench.errors import NotComparable, UsageError, unknown_name
from dpbench.messages import as_typed
from dpbench.records.environment import Environment, comparable_part
from dpbench.records.trial import TrialRecord
from dpbench.specs import AXES, Configuration, plain_label
from dpbench.specs.nodes import node_counts
from dpbench.specs.traits import IMPLEMENTATIONS, OPTIONAL_SETTINGS

if TYPE_CHECKING:
    from dpbench.folders import Sweep

Identity = tuple[str, ...]
"""Values of settings that identify what was run, as they are typed."""
Records = tuple[TrialRecord, ...]


RUN_IDENTITY = (*AXES, "nodes", "device", "dataset")
"""Settings that identify what was run. The number of repetitions and extra measurements do not
count."""


def typed_value(name: str, configuration: Configuration) -> str:
    """A setting of RUN_IDENTITY in the form in which it is typed. A rule that scales the learning
    rate counts by the rate that it gives."""
    match name:
        case "nodes":
            return node_counts(configuration.replicas_by_node) or "one"
        case "device":
            return configuration.devices[0].partition(":")[0]
        case "steps" if configuration.window_seconds:
            return f"fill {configuration.window_seconds:g} s"
        case "lr" if configuration.setting("lr"):  # and not one that a script chooses
            return as_typed(configuration.scaled_lr)
        case "dataset":
            return configuration.workload.dataset
    return AXES[name].text(configuration.setting(name))


@dataclass(frozen=True, kw_only=True)  # without slots, for cached values
class Side:
    """One of the two compared things: the trials of a sweep, or some of them."""

    label: str
    sweep: Sweep
    where: Mapping[str, str] = field(default_factory=dict)
    """Selection of the records of the sweep: {"backend": "shm"}. Its keys are in `RUN_IDENTITY`."""

    @cached_property
    def records(self) -> Records:
        """The records that the selection leaves; raises UsageError if there are none."""
        if not self.sweep.records:
            raise UsageError(f"{self.label} holds no trial that could be compared")
        chosen = self.sweep.records
        for key, text in self.where.items():
            if key not in RUN_IDENTITY:
                raise unknown_name(f"key in {self.label}", key, RUN_IDENTITY)
            known = {typed_value(key, record.configuration) for record in chosen}
            chosen = tuple(r for r in chosen if typed_value(key, r.configuration) == text)
            if not chosen:
                there = ", ".join(sorted(known))
                raise UsageError(f"{self.label}: no trial has {key} {text!r}; there is {there}")
        return chosen

    def configurations(self, keys: Sequence[str]) -> dict[Identity, list[TrialRecord]]:
        """The repetitions of each of its configurations, by the values of these settings; raises
        UsageError if two of them have the same."""
        by_identity: dict[Identity, list[TrialRecord]] = {}
        for configuration, repetitions in by_configuration(self.records).items():
            identity = tuple(typed_value(key, configuration) for key in keys)
            if identity in by_identity:
                earlier = by_identity[identity][0].configuration
                labels = " and ".join(dict.fromkeys(map(plain_label, (earlier, configuration))))
                raise UsageError(
                    f"{self.label} has more than one configuration that could be meant ({labels}); "
                    f"they differ in {'; '.join(differing_fields(configuration, earlier))}; "
                    "select one with DIR:key=value"
                )
            by_identity[identity] = repetitions
        return by_identity

    @cached_property
    def environments(self) -> dict[str, Environment | None]:
        """The environments of its trials by the comparable part of their ids; None for those that
        are not stored."""
        return {
            comparable_part(name): self.sweep.environments.get(name)
            for record in self.records
            for name in record.environment_ids
        }

    def group_classes(self) -> dict[str, str]:
        """torch's class of process group behind each backend, where ranks have a group."""
        return {
            record.configuration.backend: record.facts.group_class
            for record in self.records
            if record.facts.group_class
        }


def settings_to_match(*sides: Side) -> list[str]:
    """The settings that both sides must have in common: those that no selection fixes, and that do
    not follow from one that is fixed."""
    fixed = {name for side in sides for name in side.where}
    if "group_size" in fixed:
        fixed.add("nodes")
    names = {side.where.get("implementation") for side in sides}
    if len(names) > 1:  # other implementations have other options
        fixed |= OPTIONAL_SETTINGS
        traits = [IMPLEMENTATIONS[name] for name in names if name in IMPLEMENTATIONS]
        if any(trait.exchange != "ranks" for trait in traits):
            fixed.add("backend")
    return [name for name in RUN_IDENTITY if name not in fixed]


def matched_configurations(
    baseline: Side, candidate: Side
) -> tuple[dict[Identity, list[TrialRecord]], dict[Identity, list[TrialRecord]]]:
    """The repetitions of each configuration of both sides, by the settings to match.

    Raises NotComparable if none is on both sides, naming the settings in which they have nothing in
    common; and UsageError as `Side.configurations` does.
    """
    names = settings_to_match(baseline, candidate)
    in_baseline, in_candidate = baseline.configurations(names), candidate.configurations(names)
    if in_baseline.keys() & in_candidate.keys():
        return in_baseline, in_candidate
    differences = list[str]()
    for number, name in enumerate(names):
        of_baseline = dict.fromkeys(identity[number] for identity in in_baseline)
        of_candidate = dict.fromkeys(identity[number] for identity in in_candidate)
        if not of_baseline.keys() & of_candidate.keys():
            differences.append(f"{name}: {', '.join(of_baseline)} -> {', '.join(of_candidate)}")
    why = "each setting occurs on both sides, but never in the same combination"
    if differences:
        why = f"they differ in {'; '.join(differences)}"
    raise NotComparable(
        f"no configuration is in both {baseline.label} and {candidate.label}; {why}"
    )
