"""Which trials to run next when repetitions go on until every row is precise enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic

from dpbench import units
from dpbench.records.trial import TrialRecord
from dpbench.run.sweep.grid import missing, next_repetitions, plan_trials
from dpbench.specs import SweepSpec, TrialSpec

Unsettled = Callable[[Sequence[TrialRecord]], frozenset[TrialSpec]]
"""From all records to the configurations that want more repetitions."""


class UntilSettled:
    """Rounds of one pass each: the plan first, then more passes over what is unsettled.

    Whether a configuration is settled is only looked at when its repetitions have grown by half,
    since the interval that stops at the first lucky look is too short (see `next_repetitions`);
    and no more often than `most_looks`. What comes next depends on the records alone, so that a
    sweep that was interrupted goes on, pass by pass, as if it had not been.
    """

    def __init__(
        self,
        spec: SweepSpec,
        unsettled: Unsettled,
        *,
        budget_seconds: float,
        say: Callable[[str], None],
        most_looks: int | None = None,
        spent_seconds: float = 0.0,
    ) -> None:
        """`spent_seconds` is what earlier runs of the sweep took of the budget."""
        self._spec = spec
        self._unsettled = unsettled
        self._budget_seconds = budget_seconds
        self._say = say
        self._most_looks = most_looks
        self._started = monotonic() - spent_seconds
        self._looks: dict[int, frozenset[TrialSpec]] = {}
        self._announced = 0

    def __call__(self, records: Sequence[TrialRecord]) -> Sequence[TrialSpec]:
        if waiting := missing(plan_trials(self._spec), records):
            return waiting
        size, looks = self._spec.repetitions, 1
        unsettled = self._look(size, records)
        while unsettled and looks != self._most_looks:
            goal = next_repetitions(size)
            if waiting := self._next_pass(unsettled, range(size, goal), records):
                return self._started_if_affordable(waiting, unsettled, goal, records)
            size, looks = goal, looks + 1
            unsettled &= self._look(size, records)
        if unsettled:
            self._say(
                f"{self._counted(unsettled, records)} not settled after {looks} looks, and every "
                "further one would be a chance to err"
            )
        return ()

    def _look(self, size: int, records: Sequence[TrialRecord]) -> frozenset[TrialSpec]:
        """Configurations that need more than `size` repetitions, judged by these alone."""
        if size not in self._looks:
            self._looks[size] = self._unsettled([r for r in records if r.trial.repetition < size])
        return self._looks[size]

    def _next_pass(
        self, unsettled: frozenset[TrialSpec], repetitions: range, records: Sequence[TrialRecord]
    ) -> list[TrialSpec]:
        planned = plan_trials(self._spec, repetitions.stop)
        wanted = [
            t for t in planned if t.repetition in repetitions and t.configuration in unsettled
        ]
        waiting = missing(wanted, records)
        first = min((trial.repetition for trial in waiting), default=0)
        return [trial for trial in waiting if trial.repetition == first]

    def _started_if_affordable(
        self,
        waiting: Sequence[TrialSpec],
        unsettled: frozenset[TrialSpec],
        goal: int,
        records: Sequence[TrialRecord],
    ) -> Sequence[TrialSpec]:
        """The pass, or none if the budget does not hold it; says so, or what it is for."""
        lasted = {record.trial.configuration: record.duration_seconds for record in records}
        takes = sum(lasted.get(trial.configuration, 0.0) for trial in waiting)
        spent, budget = monotonic() - self._started, units.seconds(self._budget_seconds)
        if spent + takes > self._budget_seconds:
            self._say(
                f"the budget of {budget} does not hold another pass over "
                f"{units.counted(len(waiting), 'row')}; it would take {units.seconds(takes)}"
            )
            return ()
        if goal > self._announced:
            self._announced = goal
            self._say(
                f"{self._counted(unsettled, records)} not settled yet: up to "
                f"{units.counted(goal, 'repetition')}; {units.seconds(spent)} of {budget} spent"
            )
        return waiting

    def _counted(self, unsettled: frozenset[TrialSpec], records: Sequence[TrialRecord]) -> str:
        rows = {record.trial.configuration for record in records}
        return f"{units.counted(len(unsettled), 'row')} of {len(rows)}"
