"""When the interval of a single repetition assumes more of its steps than they hold."""

from __future__ import annotations

from dpbench.analysis.estimate import Estimate
from dpbench.analysis.steps import StepSummary

CORRELATED = 0.3
"""First-order autocorrelation of batch means from which their interval is too narrow."""
INDEPENDENT = ("steady", "too few steps")
"""Verdicts on windows whose steps are not correlated anyway, as those that drift are."""


def step_notes(label: str, steps: StepSummary, throughput: Estimate) -> list[str]:
    """A note where batches of steps are correlated and the interval is that of batches."""
    if throughput.basis != "step batches" or steps.steady not in INDEPENDENT:
        return []
    correlation = steps.windows[0].batch_autocorrelation
    if correlation is None or correlation <= CORRELATED:
        return []
    return [
        f"{label}: batches of its steps are correlated ({correlation:.2f}): the interval within "
        "its one repetition is too narrow; raise --steps or --repetitions"
    ]
