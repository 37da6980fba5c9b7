"""What `dpbench check` accepts: metrics, their tolerances, and how much it measures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from dpbench import units
from dpbench.analysis.metrics import METRICS
from dpbench.errors import UsageError
from dpbench.options.bridge import read_value
from dpbench.options.check import CheckOptions
from dpbench.options.types import Choice, Percent
from dpbench.run.gate.looks import sizes


@dataclass(frozen=True, kw_only=True, slots=True)
class Thresholds:
    """Compared metrics, their tolerances, and the limit on repetitions."""

    tolerances: dict[str, float]
    """The accepted slowdown of each metric: 0.03 for 3 %."""
    strict: bool
    force: bool
    """Whether sides of different environments are compared."""
    repetitions: int
    budget_seconds: float

    def describe(self) -> str:
        """The tolerances, for whoever reads the log of a failed check."""
        held = ", ".join(
            f"{metric} {100 * share:.3g} %" for metric, share in self.tolerances.items()
        )
        return f"tolerance: {held}; {'strict' if self.strict else 'not strict'}"

    def describe_plan(self) -> str:
        """How much is measured."""
        most, budget = sizes(self.repetitions)[-1], units.seconds(self.budget_seconds)
        return (
            f"at least {self.repetitions} repetitions; while inconclusive, up to {most} as long as "
            f"--budget {budget} lasts"
        )


def thresholds_of(options: CheckOptions) -> Thresholds:
    """The thresholds of a check; raises UsageError for a metric that cannot be used."""
    tolerances: dict[str, float] = {}
    for entry in (part for text in options.metric for part in text.split(",")):
        name, has_own, own = entry.partition("=")
        metric = read_value("--metric", Annotated[str, Choice(tuple(METRICS))], name.strip())
        if metric in tolerances:
            raise UsageError(f"--metric: {metric} is listed twice; give it one tolerance")
        tolerances[metric] = (
            read_value(f"--metric {metric}", Percent, own) if has_own else options.tolerance
        )
    return Thresholds(
        tolerances=tolerances,
        strict=options.strict,
        force=options.force,
        repetitions=options.repetitions,
        budget_seconds=options.budget,
    )
