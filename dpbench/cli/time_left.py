"""How much longer a sweep takes, from what its trials took so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dpbench.cli.trial_words import Record, Spec, spec_of
from dpbench.records import Status


class TimeLeft:
    """Estimates what remains from what the same configurations took so far.

    Sums are kept up to date, since a plan of thousands would take long to add up at every trial.
    """

    def __init__(self, specs: Sequence[Spec] = ()) -> None:
        self._waiting: Counter[Spec] = Counter()
        self._lasted: dict[Spec, float] = {}
        self._known_seconds = 0.0
        """Of all that waits and whose configuration has run."""
        self._unknown = 0
        """How many others wait."""
        self._measured = 0
        self._measured_seconds = 0.0
        self.planned(specs)

    def planned(self, specs: Sequence[Spec]) -> None:
        """These are to run next, and no others."""
        self._waiting = Counter(spec.configuration for spec in specs)
        self._known_seconds, self._unknown = 0.0, 0
        for configuration, count in self._waiting.items():
            self._count(configuration, count)

    def finished(self, record: Record) -> None:
        configuration = spec_of(record).configuration
        waiting = self._waiting[configuration]
        self._count(configuration, -waiting)
        self._lasted[configuration] = record.duration_seconds
        self._waiting[configuration] = max(waiting - 1, 0)
        self._count(configuration, self._waiting[configuration])
        if record.status is not Status.SKIPPED:
            self._measured += 1
            self._measured_seconds += record.duration_seconds

    def _count(self, configuration: Spec, trials: int) -> None:
        if configuration in self._lasted:
            self._known_seconds += trials * self._lasted[configuration]
        else:
            self._unknown += trials

    def seconds(self) -> float | None:
        """None until a trial has been measured."""
        if not self._measured:
            return None
        return self._known_seconds + self._unknown * self._typical_seconds()

    def expected_seconds(self, spec: Spec) -> float:
        """Of one trial: as long as the last of its configuration, or as a typical one."""
        return self._lasted.get(spec.configuration, self._typical_seconds())

    def _typical_seconds(self) -> float:
        return self._measured_seconds / self._measured if self._measured else 0.0
