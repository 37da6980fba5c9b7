"""How much a sweep measures: fixed steps and repetitions, or as many as a precision takes."""

from __future__ import annotations

from dataclasses import dataclass

from dpbench.cli.values import duration_seconds, integer, percentage, positive_int
from dpbench.errors import UsageError
from dpbench.specs import MOST_REPETITIONS

AUTO = "auto"
STEPS, MOST_STEPS = 50, 10_000
REPETITIONS, PRECISE_REPETITIONS = 3, 5
PRECISION = "1%"
BUDGET = "10m"


@dataclass(frozen=True, kw_only=True, slots=True)
class Effort:
    """Steps and repetitions; with `precision`, the fewest repetitions and the most steps."""

    timed_steps: int
    steps_grow: bool
    repetitions: int
    precision: float | None
    budget_seconds: float | None


def parse_effort(
    *,
    steps: str | None,
    repetitions: str | None,
    precision: str | None,
    budget: str | None,
    notes: list[str],
) -> Effort:
    """Checks the four options together; raises UsageError, and notes what it had to assume."""
    grow = steps == AUTO or (steps is None and precision is not None)
    if steps == AUTO and precision is None:
        precision = PRECISION
        notes.append(f"--steps auto: until --precision {PRECISION}")
    if precision is None:
        if budget is not None:
            raise UsageError(
                f"--budget {budget} is for --precision, which is not given; "
                "add --precision 1%, or leave --budget out"
            )
        return Effort(
            timed_steps=STEPS if steps is None else _steps(steps),
            steps_grow=False,
            repetitions=_repetitions(repetitions, REPETITIONS),
            precision=None,
            budget_seconds=None,
        )
    if budget is None:
        notes.append(f"--budget {BUDGET} for repetitions, the default with --precision")
    return Effort(
        timed_steps=MOST_STEPS if grow else _steps(steps or ""),
        steps_grow=grow,
        repetitions=_precise_repetitions(repetitions),
        precision=percentage("--precision", precision),
        budget_seconds=duration_seconds("--budget", budget or BUDGET),
    )


def _steps(token: str) -> int:
    try:
        return positive_int("--steps", token)
    except UsageError as error:
        raise UsageError(f"{error}, or {AUTO}") from None


def noise_steps(token: str) -> int:
    """Global batches to estimate the gradient noise scale from; raises UsageError."""
    from dpbench.analysis.noise_scale import FEWEST_BATCHES

    count = integer("--noise-scale", token, least=0)
    if 0 < count < FEWEST_BATCHES:
        raise UsageError(
            f"--noise-scale {count}: an estimate takes at least {FEWEST_BATCHES} global batches, "
            "better 50; or 0 for none"
        )
    return count


def _repetitions(token: str | None, default: int) -> int:
    return default if token is None else repetition_count("--repetitions", token)


def repetition_count(name: str, token: str) -> int:
    """A number of repetitions that can be planned; raises UsageError."""
    count = positive_int(name, token)
    if count > MOST_REPETITIONS:
        raise UsageError(f"{name} {count:,}: expected at most {MOST_REPETITIONS:,}")
    return count


def _precise_repetitions(token: str | None) -> int:
    """The spread between runs needs two of them at least."""
    count = _repetitions(token, PRECISE_REPETITIONS)
    if count < 2:
        raise UsageError(
            f"--repetitions {token} with --precision: an interval needs at least 2 repetitions; "
            f"give 2 or more ({PRECISE_REPETITIONS} is the default)"
        )
    return count
