"""The rows of a sweep: its further axes, and the rules of `--include` and `--exclude`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from dpbench import units
from dpbench.errors import UnknownName, UsageError
from dpbench.run.option_layers import MOST_RULES
from dpbench.run.shared_options import require_setting
from dpbench.run.sweep.grid import configurations, included, rows
from dpbench.specs import (
    AXES,
    BASELINE,
    DEFAULTS,
    Inclusion,
    SweepSpec,
    TrialSpec,
    Variant,
)
from dpbench.specs.settings import AUTO, Auto
from dpbench.specs.sweep import FIELDS, Rule, applies, condition, kept
from dpbench.specs.traits import BACKENDS, IMPLEMENTATIONS, PROCESS_GROUP_BACKENDS
from dpbench.values import comma_list, known_name, positive_int, shorten

INCLUDE, EXCLUDE = "--include", "--exclude"
Conditions = dict[str, Any]
"""The value that a rule names of each field, in the order of FIELDS."""
Include = Mapping[str, Inclusion]
"""Each by its rule, as an error names it: "--include implementation=ddp batch_size=256"."""
_PARSERS: dict[str, Callable[[str, str], Any]] = {
    "implementation": lambda option, token: known_name(option, token, IMPLEMENTATIONS),
    "backend": lambda option, token: known_name(option, token, BACKENDS),
    "group_size": positive_int,
    "batch_size": positive_int,
    **{field: axis.parse for field, axis in AXES.items()},
}


@dataclass(frozen=True, slots=True)
class Axes:
    """The values along each axis, by the field of a Variant."""

    values: Mapping[str, tuple[Any, ...]]

    def base(self, field: str) -> Any:
        """What the sweep itself says: the only value, or the first of several. It is None where one
        of several may be None, as None in a Variant keeps to the sweep."""
        values = self.values[field]
        return None if AXES[field].none and len(values) > 1 else values[0]

    def variants(self) -> tuple[Variant, ...]:
        """Every combination along the axes of several values; () if there is none."""
        several = {field: values for field, values in self.values.items() if len(values) > 1}
        if not several:
            return ()
        return tuple(
            Variant(**dict(zip(several, combination, strict=True)))
            for combination in product(*several.values())
        )


def combine(given: Mapping[str, tuple[Any, ...] | Auto], implementations: Collection[str]) -> Axes:
    """The axes by the values that were given; AUTO is the default of a trial, if it has one.

    Raises UsageError for a setting that none of the implementations has.
    """
    values = {}
    for field, several in given.items():
        if several is AUTO:  # what has no default is left to the machine
            values[field] = (DEFAULTS.get(field, AUTO),)
            continue
        values[field] = several
        asked = f"{AXES[field].option} {AXES[field].text(several)}"
        require_setting(field, asked, implementations, several=True)
    return Axes(values)


def parse_rules(option: str, text: str | None, notes: list[str]) -> tuple[Conditions, ...]:
    """Rules from "implementation=dp group_size=4,batch_size=64": commas between rules, spaces
    between the conditions of one. Raises UsageError."""
    if text is None:
        return ()
    rules = comma_list(option, text, _rule, notes, _split)
    if len(rules) > MOST_RULES:
        raise UsageError(f"{option}: {len(rules):,} rules; expected at most {MOST_RULES:,}")
    return rules


def _split(text: str) -> list[str]:
    """At commas, but for those between the options of an architecture."""
    rules: list[str] = []
    for part in text.split(","):
        name = part.partition("=")[0].strip().replace("-", "_")
        last = rules[-1].split()[-1:] if rules else []
        if "=" in part and name not in FIELDS and last and last[0].startswith("architecture="):
            rules[-1] += f",{part.strip()}"
        else:
            rules.append(part)
    return rules


def words(rule: Conditions) -> tuple[str, ...]:
    """Each condition in its one spelling."""
    return tuple(condition(field, value) for field, value in rule.items())


def _rule(option: str, text: str) -> Conditions:
    given: Conditions = {}
    for word in text.split():
        name, equals, value = word.partition("=")
        field = name.replace("-", "_")
        if not (equals and value):
            raise UsageError(
                f"{option}: {shorten(word)} is not a condition; expected field=value, as in "
                "'implementation=dp group_size=4'"
            )
        if field not in _PARSERS:
            raise UnknownName(f"field in {option}:", name, FIELDS)
        if field in given:
            raise UsageError(
                f"{option}: {shorten(text.strip())} has {field} twice; no row has two values of "
                "it, and a rule of its own is for each"
            )
        given[field] = _PARSERS[field](f"{option} {name}", value)
    return {field: given[field] for field in FIELDS if field in given}


def named_implementations(rules: Sequence[Conditions]) -> tuple[str, ...]:
    return tuple(rule["implementation"] for rule in rules if "implementation" in rule)


def inclusions(rules: Sequence[Conditions], implementations: Sequence[str], axes: Axes) -> Include:
    """What the rules add to a sweep of these implementations and settings.

    Raises UsageError for a rule that no implementation can have a row of.
    """
    return {
        f"{INCLUDE} {' '.join(words(rule))}": _inclusion(rule, implementations, axes)
        for rule in rules
    }


def check_group_sizes(include: Include, offered: int) -> None:
    """Raises UsageError for groups of more replicas than are offered."""
    for name, inclusion in include.items():
        if inclusion.group_size is not None and inclusion.group_size > offered:
            raise UsageError(
                f"{name}: the group is above the {units.counted(offered, 'replica')} that this "
                f"sweep has devices for; expected at most {offered}, or more --gpus"
            )


def check_shares(include: Include, spec: SweepSpec) -> None:
    """Raises UsageError for a replica that would get no sample of a global batch."""
    for name, inclusion in include.items():
        for row in included(spec, inclusion):
            if not min(row.replica_batch_sizes):
                raise UsageError(
                    f"{name}: with --scaling strong {row.batch_size} is the global batch, smaller "
                    f"than the group of {row.group_size}; expected a sample for every replica"
                )


def inclusion_notes(include: Include, spec: SweepSpec) -> Iterator[str]:
    """How many rows each rule adds to the grid and to the rules before it."""
    there = {*rows(replace(spec, include=()))}
    for name, inclusion in include.items():
        added = {*included(spec, inclusion)} - there
        there |= added
        baseline = {row.implementation for row in added} - {*inclusion.implementations}
        effect = f"adds {units.counted(len(added), 'row')}" if added else "is all there already"
        yield f"{name}: {effect}{f', {BASELINE} as the baseline among them' if baseline else ''}"


def _inclusion(rule: Conditions, implementations: Sequence[str], axes: Axes) -> Inclusion:
    fitting = _fitting(rule, implementations)
    settings = {field: value for field, value in rule.items() if field in AXES}
    for field, axis in AXES.items():
        values = axes.values[field]
        if axis.none is None:
            continue
        if len(values) > 1:  # the sweep itself is then at None, which need not be the first
            settings.setdefault(field, values[0])
        elif values != (None,) and settings.get(field, values) is None:
            raise UsageError(
                f"{INCLUDE} {' '.join(words(rule))}: {axis.option} {values[0]:g} is for all rows; "
                f"expected a number, or {axis.option} {values[0]:g},{axis.none}"
            )
    return Inclusion(
        implementations=fitting,
        backend=rule.get("backend"),
        group_size=rule.get("group_size"),
        batch_size=rule.get("batch_size"),
        settings=Variant(**settings),
    )


def _fitting(rule: Conditions, implementations: Sequence[str]) -> tuple[str, ...]:
    """The one that is named, or those of the sweep that can have such a row."""
    named = named_implementations([rule])
    misfits = {name: _misfit(name, rule) for name in named or implementations}
    fitting = tuple(name for name, reason in misfits.items() if reason is None)
    if not fitting:
        reason = "; ".join(filter(None, misfits.values()))
        remedy = "another implementation" if named else "an implementation that has such rows"
        raise UsageError(f"{INCLUDE} {' '.join(words(rule))}: {reason}; expected {remedy}")
    return fitting


def _misfit(implementation: str, rule: Conditions) -> str | None:
    """Why an implementation can have no such row; None if it can."""
    traits = IMPLEMENTATIONS[implementation]
    backends = PROCESS_GROUP_BACKENDS if traits.backend is None else (traits.backend,)
    if rule.get("backend", backends[0]) not in backends:
        return f"{implementation} has no backend but {', '.join(backends)}"
    largest = traits.largest_group
    if largest is not None and rule.get("group_size", 1) > largest:
        return f"{implementation} has no group above {largest}"
    for field in rule:
        if not traits.has_setting(field):
            return f"{implementation} has no {field}"
    return None


def parse_exclude(text: str | None, notes: list[str]) -> tuple[Rule, ...]:
    """The rules as the sweep keeps them. Raises UsageError."""
    return tuple(words(rule) for rule in parse_rules(EXCLUDE, text, notes))


def exclusion_notes(spec: SweepSpec) -> list[str]:
    """How many rows each rule leaves out, and what is then missing.

    Raises UsageError if nothing is left.
    """
    if not spec.exclude:
        return []
    grid = [*configurations(spec)]
    staying, measured = kept(grid, spec.exclude), rows(spec)
    if not measured:
        raise UsageError(
            f"{EXCLUDE}: the rules leave out all of {units.counted(len(grid), 'row')}; expected at "
            "least one to stay"
        )
    notes = [_effect(rule, grid, staying) for rule in spec.exclude]
    lonely = {row.batch_size for row in measured} - {
        row.batch_size for row in measured if row.implementation == BASELINE
    }
    if lonely:
        sizes = ", ".join(map(str, sorted(lonely)))
        notes.append(
            f"{EXCLUDE}: without {BASELINE} at group size 1 rows of batch size {sizes} have no "
            "absolute speedup"
        )
    return notes


def _effect(rule: Rule, grid: list[TrialSpec], staying: tuple[TrialSpec, ...]) -> str:
    applying = [row for row in grid if applies(rule, row)]
    spared = {*applying} & {*staying}
    start = f"{EXCLUDE} {' '.join(rule)}:"
    if not applying:
        return f"{start} no row is like that"
    left_out = len(applying) - len(spared)
    effect = f"{start} leaves out {left_out} of {units.counted(len(grid), 'row')}"
    if not spared:
        return effect
    return (
        f"{effect}; {BASELINE} stays as the baseline of others (to leave it out, name it: "
        f"implementation={BASELINE})"
    )
