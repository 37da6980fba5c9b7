"""`--include`: rules for rows that a sweep has beyond its grid, and what they add."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from dpbench import units
from dpbench.errors import UsageError
from dpbench.grid import included, rows
from dpbench.run.sweep.axes import Axes
from dpbench.run.sweep.rules import Conditions, words
from dpbench.specs import AXES, BASELINE, Inclusion, SweepSpec, Variant
from dpbench.traits import IMPLEMENTATIONS, PROCESS_GROUP_BACKENDS

OPTION = "--include"
Include = Mapping[str, Inclusion]
"""Each by its rule, as an error names it: "--include implementation=ddp batch_size=256"."""


def named_implementations(rules: Sequence[Conditions]) -> tuple[str, ...]:
    return tuple(rule["implementation"] for rule in rules if "implementation" in rule)


def inclusions(rules: Sequence[Conditions], implementations: Sequence[str], axes: Axes) -> Include:
    """What the rules add to a sweep of these implementations and settings.

    Raises UsageError for a rule that no implementation can have a row of.
    """
    return {
        f"{OPTION} {' '.join(words(rule))}": _inclusion(rule, implementations, axes)
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
                f"{OPTION} {' '.join(words(rule))}: {axis.option} {values[0]:g} is for all rows; "
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
        raise UsageError(f"{OPTION} {' '.join(words(rule))}: {reason}; expected {remedy}")
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
