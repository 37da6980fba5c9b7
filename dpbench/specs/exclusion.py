"""Rows that a grid leaves out: those to which all the conditions of a rule apply."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dpbench.specs.trial import AXES, BASELINE, TrialSpec

Rule = tuple[str, ...]
"""Conditions on one row, as in ("backend=gloo", "group_size=4")."""

FIELDS = ("implementation", "backend", "group_size", "batch_size", *AXES)
"""Fields that conditions may name."""


def condition(field: str, value: Any) -> str:
    """A field of a row with its value: "channels_last=yes", "prefetch=resident"."""
    return f"{field}={AXES[field].text(value) if field in AXES else value}"


def applies(rule: Rule, trial: TrialSpec) -> bool:
    return all(word == _condition_of(trial, word.partition("=")[0]) for word in rule)


def kept(trials: Iterable[TrialSpec], rules: Sequence[Rule]) -> tuple[TrialSpec, ...]:
    """The rows that stay: no rule applies to them, or they are the baseline of others that stay and
    no rule names it."""
    rows = tuple(trials)
    staying = {row for row in rows if not any(applies(rule, row) for rule in rules)}
    baselines = {row.baseline for row in staying}
    staying |= {row for row in rows if row.baseline in baselines and _is_spared(row, rules)}
    return tuple(row for row in rows if row in staying)


def _is_spared(trial: TrialSpec, rules: Sequence[Rule]) -> bool:
    named = condition("implementation", BASELINE)
    applying = [rule for rule in rules if applies(rule, trial)]
    return trial.implementation == BASELINE and not any(named in rule for rule in applying)


def _condition_of(trial: TrialSpec, field: str) -> str:
    return condition(field, trial.setting(field))
