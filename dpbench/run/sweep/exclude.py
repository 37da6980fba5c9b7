"""`--exclude`: rules for rows of the grid that a sweep leaves out, and what they do."""

from __future__ import annotations

from dpbench import units
from dpbench.errors import UsageError
from dpbench.grid import configurations, rows
from dpbench.run.sweep.rules import parse_rules, words
from dpbench.specs import BASELINE, SweepSpec, TrialSpec
from dpbench.specs.exclusion import Rule, applies, kept

OPTION = "--exclude"


def parse_exclude(text: str | None, notes: list[str]) -> tuple[Rule, ...]:
    """The rules as the sweep keeps them. Raises UsageError."""
    return tuple(words(rule) for rule in parse_rules(OPTION, text, notes))


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
            f"{OPTION}: the rules leave out all of {units.counted(len(grid), 'row')}; expected at "
            "least one to stay"
        )
    notes = [_effect(rule, grid, staying) for rule in spec.exclude]
    lonely = {row.batch_size for row in measured} - {
        row.batch_size for row in measured if row.implementation == BASELINE
    }
    if lonely:
        sizes = ", ".join(map(str, sorted(lonely)))
        notes.append(
            f"{OPTION}: without {BASELINE} at group size 1 rows of batch size {sizes} have no "
            "absolute speedup"
        )
    return notes


def _effect(rule: Rule, grid: list[TrialSpec], staying: tuple[TrialSpec, ...]) -> str:
    applying = [row for row in grid if applies(rule, row)]
    spared = {*applying} & {*staying}
    start = f"{OPTION} {' '.join(rule)}:"
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
