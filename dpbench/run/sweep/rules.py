"""The rows of a sweep: its further axes, and the rules of `--exclude`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from dpbench import units
from dpbench.errors import UnknownName, UsageError
from dpbench.run.option_layers import MOST_RULES
from dpbench.run.shared_options import require_setting
from dpbench.run.sweep.grid import configurations, rows
from dpbench.specs import (
    AXES,
    BASELINE,
    DEFAULTS,
    SweepSpec,
    TrialSpec,
    Variant,
)
from dpbench.specs.settings import AUTO, Auto
from dpbench.specs.sweep import FIELDS, Rule, applies, condition, kept
from dpbench.specs.traits import BACKENDS, IMPLEMENTATIONS
from dpbench.values import comma_list, known_name, positive_int, shorten

EXCLUDE = "--exclude"
Conditions = dict[str, Any]
"""The value that a rule names of each field, in the order of FIELDS."""
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
        """The value of the sweep itself: the only one, or the first of several.

        It is None where one of several may be None, as None in a Variant keeps to the sweep.
        """
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
