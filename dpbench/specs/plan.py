"""The plan of a sweep: its rows, and all trials in the order in which they run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

from dpbench.specs.sweep import SweepSpec
from dpbench.specs.traits import IMPLEMENTATIONS
from dpbench.specs.trial import BASELINE, TrialSettings, TrialSpec


def plan_trials(spec: SweepSpec, repetitions: int | None = None) -> tuple[TrialSpec, ...]:
    """All trials in the order they run: a palindrome over repetitions (A B C, C B A, A B C …).

    A drift of the machine then falls on all configurations alike. `repetitions` may differ from the
    sweep's own where they grow.
    """
    first_pass = [*rows(spec)]
    return tuple(
        replace(trial, repetition=repetition)
        for repetition in range(spec.repetitions if repetitions is None else repetitions)
        for trial in (first_pass if repetition % 2 == 0 else reversed(first_pass))
    )


def rows(spec: SweepSpec) -> tuple[TrialSpec, ...]:
    """The measured rows, each once.

    Rows that are compared most often run closest together in time. `single` at group size 1 is
    among them, as every speedup needs it. An implementation has no further rows for settings
    that it lacks.
    """
    names = [BASELINE] if spec.measures_baseline else []
    names = [*dict.fromkeys((*names, *spec.implementations))]
    found: dict[TrialSpec, None] = {}
    for batch_size in spec.batch_sizes:
        for group_size in dict.fromkeys((1, *spec.group_sizes)):
            for name in names:
                for trial in _with_backends(name, group_size, batch_size, spec):
                    varied = (spec.varied(trial, values) for values in spec.variants())
                    found |= dict.fromkeys(varied)
    return tuple(found)


def _with_backends(
    implementation: str, group_size: int, batch_size: int, spec: SweepSpec
) -> Iterator[TrialSpec]:
    """The trials of an implementation, none at a group size that it does not have."""
    traits = IMPLEMENTATIONS[implementation]
    if implementation in spec.largest_group_only:
        has_size = group_size == max(spec.group_sizes) > 1
    elif traits.largest_group is not None:
        has_size = group_size <= traits.largest_group
    else:
        has_size = group_size in spec.group_sizes
    if not has_size:
        return
    for backend in spec.backends if traits.backend is None else (traits.backend,):
        trial = TrialSpec(
            **{field.name: getattr(spec, field.name) for field in fields(TrialSettings)},
            implementation=implementation,
            backend=backend,
            group_size=group_size,
            batch_size=batch_size,
            devices=spec.devices_of(group_size),
            nodes=spec.nodes_of(group_size),
        )
        yield trial.with_own_settings
