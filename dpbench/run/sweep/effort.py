"""How much a sweep measures: fixed steps and repetitions, or as many as a precision takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from dpbench.errors import UsageError
from dpbench.run.shared_options import GROWING
from dpbench.settings import AUTO, AnyStored, Auto
from dpbench.values import duration_seconds, duration_text, integer, percentage

STEPS, MOST_STEPS = 50, 10_000
REPETITIONS, PRECISE_REPETITIONS = 4, 6
"""Even: only whole palindromes cancel a drift of the machine."""
PRECISION = "1%"
BUDGET = "10m"


class NoiseBatches(AnyStored):
    """Global batches to estimate the gradient noise scale from."""

    def parse(self, option: str, token: str) -> int:
        from dpbench.analysis.losses.noise_scale import FEWEST_BATCHES

        count = integer(option, token, least=0)
        if 0 < count < FEWEST_BATCHES:
            raise UsageError(
                f"{option} {count}: an estimate takes at least {FEWEST_BATCHES} global batches, "
                "better 50; or 0 for none"
            )
        return count


@dataclass(frozen=True, kw_only=True, slots=True)
class Effort:
    """Steps and repetitions; with `precision`, the fewest repetitions and the most steps."""

    timed_steps: tuple[int, ...]
    steps_grow: bool
    repetitions: int
    precision: float | None
    budget_seconds: float | None


class EffortOptions(Protocol):
    """The four options that say it together."""

    @property
    def steps(self) -> tuple[int | str, ...] | Auto: ...

    @property
    def repetitions(self) -> int | Auto: ...

    @property
    def precision(self) -> float | None: ...

    @property
    def budget(self) -> float | Auto: ...


def effort(options: EffortOptions, notes: list[str]) -> Effort:
    """Checks the four options together; raises UsageError, and notes what it had to assume."""
    numbers, precision, budget = _numbers(options.steps), options.precision, options.budget
    if options.steps == (GROWING,) and precision is None:
        precision = percentage("--precision", PRECISION)
        notes.append(f"--steps auto: until --precision {PRECISION}")
    if precision is None:
        if budget is not AUTO:
            raise UsageError(
                f"--budget {duration_text(budget)} is for --precision, which is not given; "
                "add --precision 1%, or leave --budget out",
                about=("budget",),
            )
        return Effort(
            timed_steps=numbers or (STEPS,),
            steps_grow=False,
            repetitions=REPETITIONS if options.repetitions is AUTO else options.repetitions,
            precision=None,
            budget_seconds=None,
        )
    if budget is AUTO:
        notes.append(f"--budget {BUDGET} for repetitions, the default with --precision")
    return Effort(
        timed_steps=numbers or (MOST_STEPS,),
        steps_grow=not numbers,
        repetitions=_precise_repetitions(options.repetitions),
        precision=precision,
        budget_seconds=duration_seconds("--budget", BUDGET) if budget is AUTO else budget,
    )


def _numbers(steps: tuple[int | str, ...] | Auto) -> tuple[int, ...]:
    """Those that were asked for; none where windows may grow."""
    given = () if steps is AUTO else steps
    if GROWING in given and len(given) > 1:
        raise UsageError(
            f"--steps {','.join(map(str, given))}: windows of {GROWING} grow as far as --precision "
            f"takes, in all rows; expected numbers, or {GROWING} alone",
            about=("steps",),
        )
    return tuple(count for count in given if isinstance(count, int))


def _precise_repetitions(count: int | Auto) -> int:
    """The spread between runs needs two of them at least."""
    if count is AUTO:
        return PRECISE_REPETITIONS
    if count < 2:
        raise UsageError(
            f"--repetitions {count} with --precision: an interval needs at least 2 repetitions; "
            f"give 2 or more ({PRECISE_REPETITIONS} is the default)",
            about=("repetitions", "precision"),
        )
    return count
