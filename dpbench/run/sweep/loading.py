"""`--data`, `--prefetch` and `--data-workers`: what is loaded, and how, where they meet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from dpbench.architecture import check_function
from dpbench.data.registry import DATASETS, is_function
from dpbench.errors import UsageError
from dpbench.run.sweep.rules import Axes
from dpbench.settings import AUTO, Auto
from dpbench.specs import AXES, Inclusion
from dpbench.values import known_name


def dataset_name(option: str, token: str) -> str:
    """A dataset of dpbench's, or a function of the user's that is there; raises UsageError."""
    name = token.strip()
    if not is_function(name):
        return known_name(option, name, DATASETS)
    check_function(name, "dataset")
    return name


class LoadingOptions(Protocol):
    """The options that data loading needs."""

    @property
    def data(self) -> str | Auto: ...

    @property
    def prefetch(self) -> tuple[int | None, ...] | Auto: ...


def with_loading(axes: Axes, options: LoadingOptions, notes: list[str]) -> Axes:
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


def check_included(
    axes: Axes, dataset: str | Auto, include: Iterable[tuple[str, Inclusion]]
) -> None:
    """Raises UsageError for a rule that wants samples of the user's on the device."""
    if dataset is AUTO or not is_function(dataset) or axes.base("prefetch") is not None:
        return
    for rule, inclusion in include:
        if inclusion.settings.prefetch is None:
            raise _not_resident(rule, dataset)


def _not_resident(asked: str, dataset: str) -> UsageError:
    return UsageError(
        f"{asked}: the samples of {dataset} may be too many to lie on the device; expected 0 (each "
        "step loads its own), or the number of steps to load ahead",
        about=("prefetch", "data", "include"),
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
