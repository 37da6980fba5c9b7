"""Interim analyses of a check: it is judged after some repetitions, and after more until it is
clear."""

from __future__ import annotations

import math
from statistics import median
from time import monotonic

from dpbench import units
from dpbench.analysis.comparisons.matching import Side
from dpbench.analysis.comparisons.verdict import INTERIM_ALPHA, Verdict, assess, deciding
from dpbench.messages import say
from dpbench.options.check import CheckOptions

REPETITIONS_GROWTH = 1.5
"""How many times as many repetitions the next analysis of an inconclusive check has."""
MAX_ANALYSES = 8
"""Most analyses that INTERIM_ALPHA allows: with more, errors are more frequent than stated."""


class InterimAnalyses:
    """The interim analyses of a group-sequential test, from now on: a verdict that stopped at the
    first lucky repetition would be wrong more often than stated."""

    def __init__(self, options: CheckOptions) -> None:
        self.repetitions = options.repetitions
        """Repetitions that the next analysis needs; 0 after the last one."""
        self.verdicts: tuple[Verdict, ...] = ()
        """The verdicts of the latest analysis."""
        self._options = options
        self._started = monotonic()
        self._count = 0

    def judge(self, baseline: Side, candidate: Side) -> None:
        """Judge the sides, which have as many repetitions as were needed."""
        options = self._options
        self.verdicts = assess(
            baseline,
            candidate,
            options.tolerances,
            force=options.force or options.against_python is not None,  # which is another one
            alpha=INTERIM_ALPHA,
        )
        self._count += 1
        more = self._repetitions_to_add(deciding(self.verdicts))
        self.repetitions = self.repetitions + more if more else 0

    def _repetitions_to_add(self, verdict: Verdict) -> int:
        """How many repetitions to add to those of the verdict: none if it is clear, if more of them
        cannot change it, or would end after the budget."""
        can_change = verdict.outcome == "inconclusive" and verdict.change is not None
        is_spoiled = verdict.compared.machine_load.spoils_differences
        if self._count == MAX_ANALYSES or is_spoiled or not can_change:
            return 0
        seconds = verdict.compared.repetition_seconds
        usual, budget = median(seconds), self._options.budget
        spent = monotonic() - self._started
        # What a round takes beside its repetitions, as the start of new servers of ranks.
        overhead = max(0.0, spent - sum(seconds)) / self._count
        grown = math.ceil(REPETITIONS_GROWTH * self.repetitions)
        more = min(grown - self.repetitions, math.floor((budget - spent - overhead) / usual))
        so_far = f"{verdict.outcome} after {self.repetitions} repetitions"
        if more < 1:
            say(f"{so_far}: one more would end after the budget of {units.seconds(budget)}")
            return 0
        say(f"{so_far}: measuring {more} more, about {units.seconds(overhead + more * usual)}")
        return more
