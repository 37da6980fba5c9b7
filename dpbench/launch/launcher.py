"""What a sweep asks of a launcher, and the outcome it gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from dpbench.records import RankMeasurement, Status, Verification
from dpbench.specs import TrialSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How the processes of one trial ended; `reason` says why when not completed."""

    status: Status
    reason: str | None = None
    item: str = "samples"
    items_per_sample: int = 1
    ranks: tuple[RankMeasurement, ...] = ()
    verification: Verification | None = None
    flops_per_item: float | None = None
    from_outside: bool = False
    """Something that is not the trial's ended it, as kill -9 does: another try may do better."""


class Launcher(Protocol):
    """Runs trials one at a time; never raises for what a trial does."""

    def unusable_reason(self, trial: TrialSpec) -> str | None:
        """Why this machine cannot run the trial; None if it can."""
        ...

    def run(self, trial: TrialSpec, time_limit_seconds: float) -> Outcome:
        """Runs the trial in processes of its own and leaves none behind."""
        ...
