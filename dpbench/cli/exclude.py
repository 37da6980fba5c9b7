"""`--exclude`: rules for rows that a sweep leaves out, as text and as tables, and what they do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from math import prod
from typing import Any

from dpbench import units
from dpbench.cli.axes import AXES
from dpbench.cli.values import comma_list, known_name, positive_int, shorten
from dpbench.errors import UnknownName, UsageError
from dpbench.exclusion import BASELINE, FIELDS, Rule, applies, condition, kept
from dpbench.grid import configurations
from dpbench.specs import SweepSpec, TrialSpec
from dpbench.traits import BACKENDS, IMPLEMENTATIONS

OPTION = "--exclude"
MOST_RULES = 1000
_PARSERS: dict[str, Callable[[str, str], Any]] = {
    "implementation": lambda option, token: known_name(option, token, IMPLEMENTATIONS),
    "backend": lambda option, token: known_name(option, token, BACKENDS),
    "group_size": positive_int,
    "batch_size": positive_int,
    **{axis.field: axis.parse for axis in AXES.values()},
}


def parse_exclude(text: str | None, notes: list[str]) -> tuple[Rule, ...]:
    """Rules from "implementation=dp group_size=4,batch_size=64": commas between rules, spaces
    between the conditions of one. Raises UsageError."""
    if text is None:
        return ()
    rules = comma_list(OPTION, text, _rule, notes)
    if len(rules) > MOST_RULES:
        raise UsageError(f"{OPTION}: {len(rules):,} rules; expected at most {MOST_RULES:,}")
    return rules


def as_text(tables: list[Mapping[str, Any]], scalar: Callable[[Any], str | None]) -> str:
    """Tables of conditions as the option has them; a list of values is a rule for each of them.

    `scalar` gives the text of one value, None where it is none. Raises UsageError.
    """
    return ",".join(rule for table in tables for rule in _rules_of(table, scalar))


def exclusion_notes(spec: SweepSpec) -> list[str]:
    """How many rows each rule leaves out, and what is then missing.

    Raises UsageError if nothing is left.
    """
    if not spec.exclude:
        return []
    rows = [*configurations(spec)]
    staying = kept(rows, spec.exclude)
    if not staying:
        raise UsageError(
            f"{OPTION}: the rules leave out all of {units.counted(len(rows), 'row')}; expected at "
            "least one to stay"
        )
    notes = [_effect(rule, rows, staying) for rule in spec.exclude]
    lonely = {row.batch_size for row in staying} - {
        row.batch_size for row in staying if row.implementation == BASELINE
    }
    if lonely:
        sizes = ", ".join(map(str, sorted(lonely)))
        notes.append(
            f"{OPTION}: without {BASELINE} at group size 1 rows of batch size {sizes} have no "
            "absolute speedup"
        )
    return notes


def _effect(rule: Rule, rows: list[TrialSpec], staying: tuple[TrialSpec, ...]) -> str:
    applying = [row for row in rows if applies(rule, row)]
    spared = {*applying} & {*staying}
    words = f"{OPTION} {' '.join(rule)}:"
    if not applying:
        return f"{words} no row is like that"
    left_out = len(applying) - len(spared)
    effect = f"{words} leaves out {left_out} of {units.counted(len(rows), 'row')}"
    if not spared:
        return effect
    return (
        f"{effect}; {BASELINE} stays as the baseline of others (to leave it out, name it: "
        f"implementation={BASELINE})"
    )


def _rule(option: str, text: str) -> Rule:
    given: dict[str, str] = {}
    for word in text.split():
        name, equals, value = word.partition("=")
        field = name.replace("-", "_")
        if not (equals and value):
            raise UsageError(
                f"{option}: {shorten(word)} is no condition; expected field=value, as in "
                "'implementation=dp group_size=4'"
            )
        if field not in _PARSERS:
            raise UnknownName(f"field in {option}:", name, FIELDS)
        if field in given:
            raise UsageError(
                f"{option}: {shorten(text.strip())} has {field} twice; no row has two values of "
                "it, and a rule of its own is for each"
            )
        given[field] = condition(field, _PARSERS[field](f"{option} {name}", value))
    return tuple(given[field] for field in FIELDS if field in given)


def _rules_of(table: Any, scalar: Callable[[Any], str | None]) -> list[str]:
    if not isinstance(table, dict) or not table:
        raise UsageError("exclude: expected a table of conditions in each, as 'group-size = 4'")
    values = {key: _values(key, value, scalar) for key, value in table.items()}
    if prod(map(len, values.values())) > MOST_RULES:
        raise UsageError(f"exclude: expected at most {MOST_RULES:,} combinations of values")
    return [
        " ".join(f"{key}={value}" for key, value in zip(values, chosen, strict=True))
        for chosen in product(*values.values())
    ]


def _values(key: str, value: Any, scalar: Callable[[Any], str | None]) -> list[str]:
    texts = [scalar(one) for one in (value if isinstance(value, list) else [value])]
    if not texts or None in texts:
        raise UsageError(
            f"exclude: {shorten(str(key))}: expected a value or a list of them, got "
            f"{'an empty list' if value == [] else type(value).__name__}"
        )
    words = [text for text in texts if text is not None]
    for word in words:
        if not word or {*word} & {*" ,="} or not isinstance(key, str):
            raise UsageError(f"exclude: {shorten(str(key))}: {shorten(word)} is no value")
    return words
