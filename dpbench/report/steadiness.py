"""Notes on rows whose steps were not in a steady state, and on those that are too noisy to read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dpbench import units
from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.estimate import TOO_NOISY

Some = Callable[[Sequence[str]], str]
"""Shortens a long list of rows."""


def steadiness(rows: Sequence[ConfigurationSummary], some: Some) -> Iterable[str]:
    """A line per verdict other than steady, with the remedy.

    Rows that other processes disturbed are left out: their steps say nothing about warming up.
    """
    judged = [(row, row.steps.steady) for row in rows if row.steps and not row.disturbed]
    if warming := [(row, found) for row, found in judged if found.verdict == "warming up"]:
        worst = max(found.change for _, found in warming)
        warmup = max(
            (row.configuration.warmup_steps if row.configuration else 0) + found.first_steps
            for row, found in warming
        )
        yield (
            f"still warming up: {some([row.label for row, _ in warming])}; the first steps of a "
            f"window take up to {units.fixed_percent(worst, 0)} longer than the rest; raise "
            f"--warmup to {warmup}"
        )
    if slowing := [(row, found) for row, found in judged if found.verdict == "slowing down"]:
        worst = min(found.change for _, found in slowing)
        yield (
            f"slowing down: {some([row.label for row, _ in slowing])}; the first steps of a window "
            f"are up to {units.fixed_percent(-worst, 0)} faster than the rest; look for heat, a "
            "power limit or other load"
        )


def too_noisy(rows: Sequence[ConfigurationSummary], some: Some) -> Iterable[str]:
    """One line of advice for all rows whose speed or speedup is printed as "too noisy"."""
    noisy = [
        row.label
        for row in rows
        if any(e and e.is_too_noisy for e in (row.throughput, row.speedup, row.efficiency))
    ]
    if noisy:
        yield (
            f"too noisy: {some(noisy)}; intervals wider than a factor of {TOO_NOISY:g} are not "
            "printed; free the machine or add --repetitions"
        )
