"""What the steps of a configuration call for: a sentence, its number, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence

from dpbench.analysis.estimate import Estimate
from dpbench.analysis.steady_state import SteadyState, Verdict
from dpbench.analysis.steps import StepSummary

CORRELATED = 0.3
"""First-order autocorrelation of batch means from which their interval is too narrow."""


def step_notes(
    label: str, steps: StepSummary, throughput: Estimate, warmup_steps: int
) -> list[str]:
    """Notes on a configuration that is not steady, or whose interval assumes too much."""
    windows = [window.steady for window in steps.windows]
    # What drifts is correlated anyway.
    notes = _unsteady(windows, warmup_steps) or _correlated(steps, throughput)
    return [f"{label}: {note}" for note in notes]


def _unsteady(windows: Sequence[SteadyState], warmup_steps: int) -> list[str]:
    notes = []
    if never := _with(windows, "no steady state"):
        worst = max(never, key=lambda window: abs(window.change))
        notes.append(
            f"no steady state{_share(never, windows)}; the first half of the window changes "
            f"the mean step by {_percent(worst.change)}; "
            f"raise --warmup above {warmup_steps + worst.cut_steps}"
        )
    if warming := _with(windows, "warming up"):
        worst = max(warming, key=lambda window: abs(window.change))
        notes.append(
            f"still warming up{_share(warming, windows)}; the first {worst.cut_steps} timed steps "
            f"change the mean step by {_percent(worst.change)}; "
            f"raise --warmup to {warmup_steps + worst.cut_steps}"
        )
    if drifting := _with(windows, "drifting"):
        worst = max(drifting, key=lambda window: abs(window.drift))
        remedy = "raise --warmup" if worst.drift < 0 else "look for heat or other load"
        notes.append(
            f"steps drift{_share(drifting, windows)}, "
            f"by {_percent(worst.drift)} over the window; {remedy}"
        )
    return notes


def _correlated(steps: StepSummary, throughput: Estimate) -> list[str]:
    if throughput.basis != "step batches":
        return []
    correlation = steps.windows[0].batch_autocorrelation
    if correlation is None or correlation <= CORRELATED:
        return []
    return [
        f"batches of its steps are correlated ({correlation:.2f}): the interval within its one "
        "repetition is too narrow; raise --steps or --repetitions"
    ]


def _with(windows: Sequence[SteadyState], verdict: Verdict) -> list[SteadyState]:
    return [window for window in windows if window.verdict == verdict]


def _share(some: Sequence[SteadyState], every: Sequence[SteadyState]) -> str:
    return "" if len(every) == 1 else f" in {len(some)} of {len(every)} repetitions"


def _percent(part: float) -> str:
    return f"{100 * part:+.1f} %"
