"""Notes on steps that were not in a steady state: which rows, how far, and the remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dpbench import units
from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.steady_state import FEWEST_STEPS, Steadiness, SteadyState

Windows = list[tuple[ConfigurationSummary, list[SteadyState]]]
"""Rows, each with those of its windows that a line is about."""


def steadiness(
    rows: Sequence[ConfigurationSummary], some: Callable[[Sequence[str]], str]
) -> Iterable[str]:
    """A line per verdict other than steady; `some` shortens a long list of rows.

    Rows that other processes disturbed are left out: their steps say nothing about warming up. So
    are rows of which most repetitions were steady: see `noisy_repetitions`.
    """
    rows = [row for row in rows if not row.disturbed and not _is_mostly_steady(row)]
    if never := _with(rows, "no steady state"):
        worst = max(_windows(never), key=lambda window: abs(window.change))
        yield (
            f"no steady state: {some(_shares(never))}; the first half of a window changes the mean "
            f"step by up to {_signed(worst.change)}; raise --warmup above "
            f"{max(map(_settled_after, _places(never)))}"
        )
    if warming := _with(rows, "warming up"):
        worst = max(_windows(warming), key=lambda window: abs(window.change))
        yield (
            f"still warming up: {some(_shares(warming))}; the first steps of a window change the "
            f"mean step by up to {_signed(worst.change)}; raise --warmup to "
            f"{max(map(_settled_after, _places(warming)))}"
        )
    if late := _with(rows, "changing at the end"):
        worst = max(_windows(late), key=lambda window: abs(window.late_change))
        yield (
            f"steps change at the end of the window: {some(_shares(late))}; the last "
            f"{worst.late_steps} change the mean step by up to {_signed(worst.late_change)}; look "
            "for heat, a power limit, or load that set in or ended"
        )
    if drifting := _with(rows, "drifting"):
        worst = max(_windows(drifting), key=lambda window: abs(window.drift))
        remedy = "raise --warmup" if worst.drift < 0 else "look for heat or other load"
        yield (
            f"steps drift: {some(_shares(drifting))}; by up to {_signed(worst.drift)} over a "
            f"window; {remedy}"
        )
    if _with(rows, "too few steps"):
        yield (
            f"fewer than {FEWEST_STEPS} timed steps cannot tell whether they are in a steady "
            "state; raise --steps"
        )


def noisy_repetitions(
    rows: Sequence[ConfigurationSummary], some: Callable[[Sequence[str]], str]
) -> Iterable[str]:
    """A line that names the rows of which only some repetitions were not steady, if there are any.

    It brings no advice: too short a warmup shows in most repetitions, and what befell a few is part
    of the interval over all of them.
    """
    found = [(row, _unsteady(row)) for row in rows if not row.disturbed and _is_mostly_steady(row)]
    if few := [(row, windows) for row, windows in found if windows]:
        yield (
            "steps were not in a steady state in at most half of a row's repetitions, as noise of "
            "the machine does it (too short a warmup shows in most of them); the intervals contain "
            f"it: {some(_shares(few))}"
        )


def _is_mostly_steady(row: ConfigurationSummary) -> bool:
    """Whether at most half of three or more repetitions were not steady."""
    of_all = len(row.steps.windows) if row.steps else 0
    return of_all > 2 and 2 * len(_unsteady(row)) <= of_all


def _unsteady(row: ConfigurationSummary) -> list[SteadyState]:
    found = [window.steady for window in row.steps.windows] if row.steps else []
    return [steady for steady in found if steady.verdict not in ("steady", "too few steps")]


def _with(rows: Sequence[ConfigurationSummary], verdict: Steadiness) -> Windows:
    found = [
        (row, [w.steady for w in row.steps.windows if w.steady.verdict == verdict])
        for row in rows
        if row.steps
    ]
    return [(row, windows) for row, windows in found if windows]


def _windows(found: Windows) -> list[SteadyState]:
    return [window for _, windows in found for window in windows]


def _places(found: Windows) -> list[tuple[ConfigurationSummary, SteadyState]]:
    return [(row, window) for row, windows in found for window in windows]


def _settled_after(place: tuple[ConfigurationSummary, SteadyState]) -> int:
    """The warmup steps that would have left the unsteady ones out."""
    row, window = place
    warmup = row.configuration.warmup_steps if row.configuration else 0
    return warmup + window.cut_steps


def _shares(found: Windows) -> list[str]:
    """Says "ddp/gloo ×2, batch 32 (1 of 5)"."""
    return [
        f"{row.label} ({len(windows)} of {len(row.steps.windows)})" if row.steps else row.label
        for row, windows in found
    ]


def _signed(part: float) -> str:
    return units.fixed_percent(part, 1, signed=True)
