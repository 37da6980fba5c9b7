"""What a sweep tells other processes while it runs: `dpbench top` looks at it."""

from __future__ import annotations

import platform
from collections.abc import Sequence

from dpbench.grid import plan
from dpbench.live import LivePage, RunningSweep
from dpbench.specs import SweepSpec, TrialSpec
from dpbench.store import SweepStore


class Broadcast:
    """Hears of every trial before it starts; ranks add their steps themselves."""

    def __init__(self, spec: SweepSpec, results: SweepStore, page: LivePage) -> None:
        self._places = {trial.configuration: place for place, trial in enumerate(plan(spec, 1))}
        self._results = results
        self._page = page
        self._round = 0
        self._waiting: dict[TrialSpec, int] = {}

    def planned(self, waiting: Sequence[TrialSpec]) -> None:
        """A round of trials begins; they run in this order."""
        self._round += 1
        self._waiting = {trial: place for place, trial in enumerate(waiting)}
        self._results.publish(
            RunningSweep(
                host=platform.node(),
                address=self._page.address,
                round=self._round,
                configurations=tuple(self._places[trial.configuration] for trial in waiting),
                repetitions=tuple(trial.repetition for trial in waiting),
            )
        )
        self._page.begin_round(self._round)

    def started(self, trial: TrialSpec) -> None:
        self._page.begin_trial(self._waiting[trial])

    def finished(self) -> None:
        self._page.end_trial()
