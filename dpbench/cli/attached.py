"""A sweep as another process sees it: the trials it has stored, and the page of memory it keeps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from dpbench import store
from dpbench.cli.standing import Standing
from dpbench.cli.watching import moment_of
from dpbench.errors import StoreError
from dpbench.grid import plan
from dpbench.live import Moment, NoPage, RunningSweep
from dpbench.records import TrialRecord
from dpbench.specs import TrialSpec

Ending = Literal["finished", "stopped", "killed"]


class AttachedSweep:
    """A results folder that is looked at again and again; only what is new is read."""

    def __init__(self, folder: Path) -> None:
        """Raises StoreError if it is not the folder of a sweep, NewerSchema if it is too new."""
        self.folder = folder
        self.spec, self.command = store.load_header(folder)
        self.running: RunningSweep | None = None
        self.moment: Moment | None = None
        self.ending: Ending | None = None
        """How it ended; None while it runs."""
        self.too_wide = 0
        """Configurations that are not known as precisely as was asked for; once it has ended."""
        self.standing = Standing(grows=self.spec.precision is not None)
        self.standing.planned(plan(self.spec))
        self._reader = store.follow_trials(folder)
        self._stored: set[TrialSpec] = set()
        self._records: list[TrialRecord] = []
        """Kept only where the plan grows with what they say."""
        self._round: Sequence[TrialSpec] = ()

    def look(self) -> None:
        """Brings everything up to date; raises StoreError if the folder is no longer right."""
        known = self.running
        self.running, self.moment, killed = self._running()
        # After that: a sweep stores its last trial before it takes leave.
        for record in self._reader.new():
            self._stored.add(record.trial)
            if self.spec.precision is not None:
                self._records.append(record)
            self.standing.finished(record)
        if self.running is None:
            self._end(killed=killed)
            return
        self.ending = None
        if self.running != known:
            self._begin_round(self.running)
        self._follow(self.running)

    def _running(self) -> tuple[RunningSweep | None, Moment | None, bool]:
        """What runs and where it is, and whether something ran that was killed."""
        running = store.load_running(self.folder)
        if running is None:
            return None, None, False
        try:
            return running, moment_of(running), False
        except NoPage:  # or it took leave just now
            return None, None, store.load_running(self.folder) is not None

    def _begin_round(self, running: RunningSweep) -> None:
        trials = self._trials(max(running.repetitions, default=0) + 1)
        try:
            pairs = zip(running.configurations, running.repetitions, strict=True)
            self._round = [trials[pair] for pair in pairs]
        except (KeyError, ValueError):
            raise StoreError(
                f"{self.folder / store.LIVE_FILE} names trials that the sweep does not have; the "
                "file was changed by hand"
            ) from None
        waiting = [trial for trial in self._round if trial not in self._stored]
        self.standing.planned(waiting)

    def _trials(self, repetitions: int) -> dict[tuple[int, int], TrialSpec]:
        """By place of the configuration in the first pass, and repetition."""
        places = {trial.configuration: place for place, trial in enumerate(plan(self.spec, 1))}
        planned = plan(self.spec, repetitions)
        return {(places[trial.configuration], trial.repetition): trial for trial in planned}

    def _follow(self, running: RunningSweep) -> None:
        """Finds the trial that runs."""
        moment = self.moment
        # A round ends and another begins between two looks at the file and at the page.
        if moment is None or moment.trial is None or moment.round != running.round:
            self.standing.stopped()
            return
        if not moment.trial < len(self._round):
            raise StoreError(
                f"{self.folder / store.LIVE_FILE} names {len(self._round)} trials, but number "
                f"{moment.trial + 1} runs; the file was changed by hand"
            )
        trial = self._round[moment.trial]
        if trial in self._stored:
            self.standing.stopped()
        else:
            self.standing.started(trial, moment.started_seconds)

    def _end(self, *, killed: bool) -> None:
        missing = [trial for trial in plan(self.spec) if trial not in self._stored]
        if self.spec.precision is not None:
            from dpbench.analysis.precision import too_wide

            self.too_wide = len(too_wide(self._records, self.spec.precision))
        if not missing and not self.too_wide:
            self.ending = "finished"
        else:
            self.ending = "killed" if killed else "stopped"
        self.standing.planned(missing)
        self.standing.over()
