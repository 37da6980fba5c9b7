"""`--data`, `--prefetch` and `--data-workers`: what is loaded, and how, where they meet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dpbench.architecture import check_function
from dpbench.cli.axes import Axes
from dpbench.cli.values import known_name
from dpbench.data.registry import DATASETS, is_function
from dpbench.errors import UsageError
from dpbench.specs import NONE_WORDS, Inclusion

RESIDENT = NONE_WORDS["prefetch"]


def dataset_name(text: str | None) -> str | None:
    """A dataset of dpbench's, or a function of the user's that is there; None is left out.

    Raises UsageError.
    """
    if text is None:
        return None
    name = text.strip()
    if not is_function(name):
        return known_name("--data", name, DATASETS)
    check_function(name, "dataset")
    return name


def with_loading(axes: Axes, dataset: str | None, prefetch: str | None, notes: list[str]) -> Axes:
    """The axes as they are possible for the dataset; `prefetch` as it was typed.

    Raises UsageError for samples of the user's that would have to lie on the device, and for
    workers without anything to load ahead.
    """
    if dataset is not None and is_function(dataset):
        if prefetch is None:
            axes = replace(axes, values={**axes.values, "prefetch": (0,)})
            notes.append(
                f"--prefetch 0, the default of datasets of your own: each step loads its samples "
                f"of {dataset}; --prefetch 2 loads two steps ahead"
            )
        elif None in axes.values["prefetch"]:
            raise _not_resident(f"--prefetch {prefetch}", dataset)
    _check_workers(axes, notes)
    return axes


def check_included(
    axes: Axes, dataset: str | None, include: Iterable[tuple[str, Inclusion]]
) -> None:
    """Raises UsageError for a rule that wants samples of the user's on the device."""
    if dataset is None or not is_function(dataset) or axes.base("prefetch") is not None:
        return
    for rule, inclusion in include:
        if inclusion.settings.prefetch is None:
            raise _not_resident(rule, dataset)


def _not_resident(asked: str, dataset: str) -> UsageError:
    return UsageError(
        f"{asked}: the samples of {dataset} may be too many to lie on the device; expected 0 (each "
        "step loads its own), or the number of steps to load ahead"
    )


def _check_workers(axes: Axes, notes: list[str]) -> None:
    if not any(axes.values["data_workers"]):
        return
    workers = ",".join(map(str, axes.values["data_workers"]))
    idle = [RESIDENT if ahead is None else "0" for ahead in axes.values["prefetch"] if not ahead]
    if len(idle) == len(axes.values["prefetch"]):
        raise UsageError(
            f"--data-workers {workers} with --prefetch {','.join(idle)}: workers load ahead; "
            "expected --prefetch with a number from 1 on, the batches for each worker, as "
            "--prefetch 2"
        )
    if idle:
        notes.append(
            f"--data-workers {workers}: rows with --prefetch {' and '.join(idle)} have none, as "
            "workers load ahead"
        )
