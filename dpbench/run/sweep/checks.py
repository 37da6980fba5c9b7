"""Checks options of a sweep against each other, and derives its steps and repetitions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from dpbench import architecture
from dpbench.data.registry import is_function
from dpbench.errors import UsageError, about
from dpbench.run.shared_options import GROWING_STEPS, LARGEST_BATCH, STAGED_BACKEND
from dpbench.run.sweep.options import (
    BUDGET,
    PRECISE_REPETITIONS,
    PRECISION,
    REPETITIONS,
    STEPS,
    SweepOptions,
)
from dpbench.run.sweep.rules import Axes, combine, parse_exclude
from dpbench.specs import AXES
from dpbench.specs.settings import AUTO, Auto
from dpbench.specs.sweep import Rule
from dpbench.specs.traits import IMPLEMENTATIONS
from dpbench.values import duration_seconds, duration_text, percentage

MOST_STEPS = 10_000
"""Longest timed window that grows with --steps auto."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Amounts:
    """Steps and repetitions; with `precision`, the fewest repetitions and the most steps."""

    timed_steps: tuple[int, ...]
    steps_grow: bool
    repetitions: int
    precision: float | None
    budget_seconds: float | None


@dataclass(frozen=True, slots=True)
class ParsedOptions:
    """Options checked against each other; the machine and the data may still object."""

    options: SweepOptions
    backends: tuple[str, ...] | Auto
    batch_sizes: tuple[int, ...]
    largest_batch: bool
    """Another one is the largest that fits, which is to be found first."""
    axes: Axes
    exclude: tuple[Rule, ...]
    amounts: Amounts
    notes: tuple[str, ...]


def parse_sweep_options(options: SweepOptions, notes: list[str]) -> ParsedOptions:
    """Checks options against each other; raises UsageError. Looks at nothing but them."""
    if options.input_shape is not None:
        with about("input_shape", "arch"):
            named = _with_input_shape(options.arch, options.input_shape)
        options = replace(options, arch=(named,), input_shape=None)
    with about("exclude"):
        exclude = parse_exclude(options.exclude, notes)
    amounts = parse_amounts(options, notes)
    values = {field: getattr(options, axis.name) for field, axis in AXES.items()}
    values["timed_steps"] = amounts.timed_steps
    axes = with_loading(combine(values, options.implementations), options, notes)
    parsed = ParsedOptions(
        options=options,
        backends=_backends(options, notes),
        batch_sizes=tuple(size for size in options.batch_sizes if isinstance(size, int)),
        largest_batch=LARGEST_BATCH in options.batch_sizes,
        axes=axes,
        exclude=exclude,
        amounts=amounts,
        notes=tuple(notes),
    )
    _check_backends(parsed, options.implementations)
    _check_sync_every(parsed)
    with about("arch"):
        for name in options.arch:
            architecture.check(name)
    _check_step(parsed)
    return parsed


def _with_input_shape(names: Sequence[str], shape: str) -> str:
    if len(names) > 1:
        raise UsageError(
            f"--input-shape {shape} with --arch {','.join(names)}: it is not clear which "
            "architecture it belongs to; expected it as an option of a name, as in "
            "model.py:make:input_shape=3x32x32"
        )
    return architecture.with_input_shape(names[0], shape)


def _backends(options: SweepOptions, notes: list[str]) -> tuple[str, ...] | Auto:
    both = (options.backends, options.sync_backend)
    if AUTO not in both:
        raise UsageError(
            f"got --backends {_listed(options.backends)} and --sync-backend "
            f"{_listed(options.sync_backend)}, which are two names of one option; give one of them",
            about=("backends", "sync_backend"),
        )
    option, names = _asked_backends(options)
    if names is AUTO:
        return AUTO
    if STAGED_BACKEND in names:
        notes.append(f"{option} {STAGED_BACKEND} means shm: ranks reduce through the host's memory")
    return tuple(dict.fromkeys("shm" if one == STAGED_BACKEND else one for one in names))


def _asked_backends(options: SweepOptions) -> tuple[str, tuple[str, ...] | Auto]:
    """The option that gives the backends, and their names as they are typed."""
    if options.sync_backend is AUTO:
        return "--backends", options.backends
    return "--sync-backend", options.sync_backend


def _listed(names: tuple[str, ...] | Auto) -> str:
    return "" if names is AUTO else ",".join(names)


def _check_backends(parsed: ParsedOptions, implementations: Collection[str]) -> None:
    takes_one = any(IMPLEMENTATIONS[name].backend is None for name in implementations)
    option, names = _asked_backends(parsed.options)
    if names is not AUTO and not takes_one:
        raise UsageError(
            f"{option} {','.join(names)}: none of the implementations "
            f"{', '.join(implementations)} has a choice of backend; add one that has, such "
            f"as ddp, or leave {option} out",
            about=("backends", "sync_backend", "implementations"),
        )


def _check_step(parsed: ParsedOptions) -> None:
    step = parsed.options.step
    if step is None:
        return
    with about("step"):
        architecture.check_function(step, "step")


def _check_sync_every(parsed: ParsedOptions) -> None:
    options = ("sync_every", "steps", "precision")
    for option, every, steps in _periods(parsed):
        if every > 1 and parsed.amounts.steps_grow:
            raise UsageError(
                f"{option} with --steps auto: the window might not hold whole periods; "
                f"give --steps as a multiple of {every}",
                about=options,
            )
        if steps % every:
            raise UsageError(
                f"{option} with --steps {steps}: the window would not hold whole "
                f"periods; expected --steps to be a multiple of {every}",
                about=options,
            )


def _periods(parsed: ParsedOptions) -> Iterator[tuple[str, int, int]]:
    """The options that ask for steps between two averages, their number, and the timed steps."""
    several = parsed.amounts.timed_steps
    for every in parsed.axes.values["sync_every"]:
        yield from ((f"--sync-every {every}", every, steps) for steps in several)


def parse_amounts(options: SweepOptions, notes: list[str]) -> Amounts:
    """Checks the four options together; raises UsageError, and notes what it had to assume."""
    numbers, precision, budget = _numbers(options.steps), options.precision, options.budget
    if options.steps == (GROWING_STEPS,) and precision is None:
        precision = percentage("--precision", PRECISION)
        notes.append(f"--steps auto: until --precision {PRECISION}")
    if precision is None:
        if budget is not AUTO:
            raise UsageError(
                f"--budget {duration_text(budget)} is for --precision, which is not given; "
                f"add --precision {PRECISION}, or leave --budget out",
                about=("budget",),
            )
        return Amounts(
            timed_steps=numbers or (STEPS,),
            steps_grow=False,
            repetitions=REPETITIONS if options.repetitions is AUTO else options.repetitions,
            precision=None,
            budget_seconds=None,
        )
    if budget is AUTO:
        notes.append(f"--budget {BUDGET} for repetitions, the default with --precision")
    return Amounts(
        timed_steps=numbers or (MOST_STEPS,),
        steps_grow=not numbers,
        repetitions=_precise_repetitions(options.repetitions),
        precision=precision,
        budget_seconds=duration_seconds("--budget", BUDGET) if budget is AUTO else budget,
    )


def _numbers(steps: tuple[int | str, ...] | Auto) -> tuple[int, ...]:
    """The numbers that were asked for; none where windows may grow."""
    given = () if steps is AUTO else steps
    if GROWING_STEPS in given and len(given) > 1:
        raise UsageError(
            f"--steps {','.join(map(str, given))}: windows of {GROWING_STEPS} grow as far as "
            f"--precision takes, in all rows; expected numbers, or {GROWING_STEPS} alone",
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


def with_loading(axes: Axes, options: SweepOptions, notes: list[str]) -> Axes:
    """The axes as they are possible for the dataset.

    Raises UsageError for samples of the user's that would have to lie on the device, and for
    workers without anything to load ahead.
    """
    dataset, prefetch = options.data, options.prefetch
    if dataset is not AUTO and is_function(dataset):
        if prefetch is AUTO:
            axes = replace(axes, values={**axes.values, "prefetch": (0,)})
            notes.append(
                f"--prefetch 0, the default of datasets of your own: each step loads its samples "
                f"of {dataset}; --prefetch 2 loads two steps ahead"
            )
        elif None in prefetch:
            raise _not_resident(f"--prefetch {AXES['prefetch'].text(prefetch)}", dataset)
    _check_workers(axes, notes)
    return axes


def _not_resident(asked: str, dataset: str) -> UsageError:
    return UsageError(
        f"{asked}: the samples of {dataset} may be too many to lie on the device; expected 0 (each "
        "step loads its own), or the number of steps to load ahead",
        about=("prefetch", "data"),
    )


def _check_workers(axes: Axes, notes: list[str]) -> None:
    if not any(axes.values["data_workers"]):
        return
    workers = ",".join(map(str, axes.values["data_workers"]))
    ahead = axes.values["prefetch"]
    idle = [AXES["prefetch"].text(steps) for steps in ahead if not steps]
    if len(idle) == len(ahead):
        raise UsageError(
            f"--data-workers {workers} with --prefetch {','.join(idle)}: workers load ahead; "
            "expected --prefetch with a number from 1 on, the batches for each worker, as "
            "--prefetch 2",
            about=("data_workers", "prefetch"),
        )
    if idle:
        notes.append(
            f"--data-workers {workers}: rows with --prefetch {' and '.join(idle)} have none, as "
            "workers load ahead"
        )
