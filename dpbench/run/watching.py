"""The progress of a sweep as other processes see it, through the file live.json.

live.json names the trials of the round under way: each by the place of its configuration in the
first pass of the plan, and its repetition. The page of memory beside it (`dpbench.store.live`) says
which of them runs, and at which step it is.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from dpbench import store
from dpbench.errors import StoreError
from dpbench.records.trial import TrialRecord
from dpbench.report.progress.state import ProgressState
from dpbench.run.sweep.grid import plan_trials
from dpbench.specs import SweepSpec, TrialSpec
from dpbench.store import SweepStore, live
from dpbench.store.live import ForeignPage, LivePage, Moment, NoPage, RunningSweep

Ending = Literal["finished", "stopped", "killed"]


class Broadcast:
    """Tells of every trial before it starts; ranks add their steps themselves."""

    def __init__(self, spec: SweepSpec, results: SweepStore, page: LivePage) -> None:
        self._places = _places(spec)
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


class WatchedSweep:
    """A results folder that is looked at again and again; only what is new is read."""

    def __init__(self, folder: Path) -> None:
        """Raises StoreError if it is not the folder of a sweep, NewerSchema if it is too new."""
        self.folder = folder
        self.spec, self.command = store.load_header(folder)
        self.running: RunningSweep | None = None
        self.moment: Moment | None = None
        self.ending: Ending | None = None
        """The end of the sweep; None while it runs."""
        self.too_wide = 0
        """After the end: configurations that are not known as precisely as was asked for."""
        self.state = ProgressState(grows=self.spec.precision is not None)
        self.state.planned(plan_trials(self.spec))
        self._reader = store.follow_trials(folder)
        self._stored: set[TrialSpec] = set()
        self._records: list[TrialRecord] = []
        """Kept only where the plan grows with what they say."""
        self._round: Sequence[TrialSpec] = ()

    def look(self) -> None:
        """Brings everything up to date; raises StoreError if the folder is no longer right."""
        known = self.running
        self.running, self.moment, killed = self._running()
        # Records are read after live.json: a sweep stores its last trial before it takes leave.
        for record in self._reader.new():
            self._stored.add(record.trial)
            if self.spec.precision is not None:
                self._records.append(record)
            self.state.finished(record)
        if self.running is None:
            self._end(killed=killed)
            return
        self.ending = None
        if self.running != known:
            self._begin_round(self.running)
        self._follow(self.running)

    def _running(self) -> tuple[RunningSweep | None, Moment | None, bool]:
        """The sweep that runs and where it is, and whether one ran that was killed."""
        running = store.load_running(self.folder)
        if running is None:
            return None, None, False
        try:
            return running, _moment_of(running), False
        except NoPage:  # killed, unless it took leave just now
            return None, None, store.load_running(self.folder) is not None

    def _begin_round(self, running: RunningSweep) -> None:
        places = _places(self.spec)
        planned = plan_trials(self.spec, max(running.repetitions, default=0) + 1)
        trials = {(places[trial.configuration], trial.repetition): trial for trial in planned}
        try:
            pairs = zip(running.configurations, running.repetitions, strict=True)
            self._round = [trials[pair] for pair in pairs]
        except (KeyError, ValueError):
            raise StoreError(
                f"{self.folder / store.LIVE_FILE} names trials that the sweep does not have; the "
                "file was changed by hand"
            ) from None
        waiting = [trial for trial in self._round if trial not in self._stored]
        self.state.planned(waiting)

    def _follow(self, running: RunningSweep) -> None:
        """Finds the trial that runs."""
        moment = self.moment
        # One round may have ended and another begun between the look at the file and at the page.
        if moment is None or moment.trial is None or moment.round != running.round:
            self.state.stopped()
            return
        if not moment.trial < len(self._round):
            raise StoreError(
                f"{self.folder / store.LIVE_FILE} names {len(self._round)} trials, but number "
                f"{moment.trial + 1} runs; the file was changed by hand"
            )
        trial = self._round[moment.trial]
        if trial in self._stored:
            self.state.stopped()
        else:
            self.state.started(trial, moment.started_seconds)

    def _end(self, *, killed: bool) -> None:
        missing = [trial for trial in plan_trials(self.spec) if trial not in self._stored]
        if self.spec.precision is not None:
            from dpbench.analysis.precision import too_wide

            self.too_wide = len(too_wide(self._records, self.spec.precision))
        if not missing and not self.too_wide:
            self.ending = "finished"
        else:
            self.ending = "killed" if killed else "stopped"
        self.state.planned(missing)
        self.state.over()


def is_running(folder: Path) -> bool:
    """Tells whether live.json exists and the memory that it points to is not gone.

    Nothing contradicts it where the sweep runs on another host or belongs to another user. Raises
    StoreError if live.json cannot be read.
    """
    running = store.load_running(folder)
    if running is None:
        return False
    try:
        _moment_of(running)
    except NoPage:
        return False
    return True


def _moment_of(running: RunningSweep) -> Moment | None:
    """Reads its page; None if that cannot be seen from here. Raises NoPage if it was killed."""
    if running.address is None or running.host != platform.node():
        return None
    try:
        return live.read(running.address)
    except ForeignPage:
        return None


def _places(spec: SweepSpec) -> dict[TrialSpec, int]:
    """The place of each configuration in the first pass of the plan."""
    return {trial.configuration: place for place, trial in enumerate(plan_trials(spec, 1))}
