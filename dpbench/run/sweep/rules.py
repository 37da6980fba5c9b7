"""Rules about rows of a sweep: text as "implementation=dp group_size=4", or tables in a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from math import prod
from typing import Any

from dpbench.errors import UnknownName, UsageError
from dpbench.specs import AXES, exclusion
from dpbench.specs.exclusion import FIELDS
from dpbench.traits import BACKENDS, IMPLEMENTATIONS
from dpbench.values import comma_list, known_name, positive_int, shorten

Conditions = dict[str, Any]
"""The value that a rule names of each field, in the order of FIELDS."""

MOST_RULES = 1000
_PARSERS: dict[str, Callable[[str, str], Any]] = {
    "implementation": lambda option, token: known_name(option, token, IMPLEMENTATIONS),
    "backend": lambda option, token: known_name(option, token, BACKENDS),
    "group_size": positive_int,
    "batch_size": positive_int,
    **{field: axis.parse for field, axis in AXES.items()},
}


def parse_rules(option: str, text: str | None, notes: list[str]) -> tuple[Conditions, ...]:
    """Rules from "implementation=dp group_size=4,batch_size=64": commas between rules, spaces
    between the conditions of one. Raises UsageError."""
    if text is None:
        return ()
    rules = comma_list(option, text, _rule, notes)
    if len(rules) > MOST_RULES:
        raise UsageError(f"{option}: {len(rules):,} rules; expected at most {MOST_RULES:,}")
    return rules


def words(rule: Conditions) -> tuple[str, ...]:
    """Each condition in its one spelling."""
    return tuple(exclusion.condition(field, value) for field, value in rule.items())


def as_text(key: str, tables: list[Any], scalar: Callable[[Any], str | None]) -> str:
    """Tables of conditions as the option has them; a list of values is a rule for each of them.

    `key` is what a file calls them. `scalar` gives the text of one value, None where it is none.
    Raises UsageError.
    """
    return ",".join(rule for table in tables for rule in _rules_of(key, table, scalar))


def _rule(option: str, text: str) -> Conditions:
    given: Conditions = {}
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
        given[field] = _PARSERS[field](f"{option} {name}", value)
    return {field: given[field] for field in FIELDS if field in given}


def _rules_of(key: str, table: Any, scalar: Callable[[Any], str | None]) -> list[str]:
    if not isinstance(table, Mapping) or not table:
        raise UsageError(f"{key}: expected a table of conditions in each, as 'group-size = 4'")
    values = {field: _values(key, field, value, scalar) for field, value in table.items()}
    if prod(map(len, values.values())) > MOST_RULES:
        raise UsageError(f"{key}: expected at most {MOST_RULES:,} combinations of values")
    return [
        " ".join(f"{field}={value}" for field, value in zip(values, chosen, strict=True))
        for chosen in product(*values.values())
    ]


def _values(key: str, field: Any, value: Any, scalar: Callable[[Any], str | None]) -> list[str]:
    texts = [scalar(one) for one in (value if isinstance(value, list) else [value])]
    if not texts or None in texts:
        raise UsageError(
            f"{key}: {shorten(str(field))}: expected a value or a list of them, got "
            f"{'an empty list' if value == [] else type(value).__name__}"
        )
    words = [text for text in texts if text is not None]
    for word in words:
        if not word or {*word} & {*" ,="} or not isinstance(field, str):
            raise UsageError(f"{key}: {shorten(str(field))}: {shorten(word)} is no value")
    return words
