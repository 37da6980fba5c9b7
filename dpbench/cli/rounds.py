"""Which trials to run next when repetitions go on until every row is precise enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic

from dpbench import units
from dpbench.cli.measuring import missing
from dpbench.records import TrialRecord
from dpbench.specs import SweepSpec, TrialSpec
from dpbench.sweep import next_repetitions, plan

Unsettled = Callable[[Sequence[TrialRecord]], frozenset[TrialSpec]]
"""From all records to the configurations that want more repetitions."""


class UntilSettled:
    """Rounds of one pass each: the plan first, then more passes over what is unsettled.

    Whether a configuration is settled is only looked at when its repetitions have grown by half,
    since the interval that stops at the first lucky look is too short (see `next_repetitions`);
    and no more often than `most_looks`.
    """

    def __init__(
        self,
        spec: SweepSpec,
        unsettled: Unsettled,
        *,
        budget_seconds: float,
        say: Callable[[str], None],
        most_looks: int | None = None,
    ) -> None:
        self._spec = spec
        self._unsettled = unsettled
        self._budget_seconds = budget_seconds
        self._most_looks = most_looks
        self._say = say
        self._looks = 0
        self._started = monotonic()
        self._goals: dict[TrialSpec, int] = {}

    def __call__(self, records: Sequence[TrialRecord]) -> Sequence[TrialSpec]:
        if waiting := missing(plan(self._spec), records):
            return waiting
        waiting, plans = self._towards_goals(records), ""
        if not waiting and (unsettled := self._look(records)):
            plans = self._set_goals(unsettled, records)
            waiting = self._towards_goals(records)
        if not self._affordable(waiting, records):
            return ()
        if plans:
            self._say(plans)
        return waiting

    def _look(self, records: Sequence[TrialRecord]) -> frozenset[TrialSpec]:
        """What wants more repetitions; nothing after the last look."""
        self._looks += 1
        unsettled = self._unsettled(records)
        if not unsettled or self._looks != self._most_looks:
            return unsettled
        self._say(
            f"{units.counted(len(unsettled), 'row')} of {len(_repetitions(records))} not settled "
            f"after {self._looks} looks, and every further one would be a chance to err"
        )
        return frozenset()

    def _set_goals(self, unsettled: frozenset[TrialSpec], records: Sequence[TrialRecord]) -> str:
        """Returns what there is to say of them."""
        done = _repetitions(records)
        self._goals = {spec: next_repetitions(done[spec]) for spec in unsettled}
        most = max(self._goals.values())
        return (
            f"{units.counted(len(unsettled), 'row')} of {len(done)} not settled yet: up to "
            f"{units.counted(most, 'repetition')}; {units.seconds(self._spent())} of "
            f"{units.seconds(self._budget_seconds)} spent"
        )

    def _towards_goals(self, records: Sequence[TrialRecord]) -> list[TrialSpec]:
        """The next pass over the configurations that have not reached their goals."""
        if not self._goals:
            return []
        planned = plan(self._spec, max(self._goals.values()))
        wanted = [t for t in planned if t.repetition < self._goals.get(t.configuration, 0)]
        waiting = missing(wanted, records)
        first = min((trial.repetition for trial in waiting), default=0)
        return [trial for trial in waiting if trial.repetition == first]

    def _affordable(self, waiting: Sequence[TrialSpec], records: Sequence[TrialRecord]) -> bool:
        lasted = {record.trial.configuration: record.duration_seconds for record in records}
        next_pass = sum(lasted.get(trial.configuration, 0.0) for trial in waiting)
        if not waiting or self._spent() + next_pass <= self._budget_seconds:
            return True
        self._say(
            f"the budget of {units.seconds(self._budget_seconds)} does not hold another pass over "
            f"{units.counted(len(waiting), 'row')}; it would take {units.seconds(next_pass)}"
        )
        return False

    def _spent(self) -> float:
        return monotonic() - self._started


def _repetitions(records: Sequence[TrialRecord]) -> dict[TrialSpec, int]:
    done: dict[TrialSpec, int] = {}
    for record in records:
        spec = record.trial.configuration
        done[spec] = max(done.get(spec, 0), record.trial.repetition + 1)
    return done
