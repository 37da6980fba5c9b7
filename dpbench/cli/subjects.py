"""Paths on the command line as what a report is about."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dpbench.errors import StoreError

if TYPE_CHECKING:
    from dpbench.analysis.subject import Subject
    from dpbench.store import StoredSweep


def is_table(path: Path) -> bool:
    """Tells a .csv file from a results folder."""
    return path.suffix.lower() == ".csv" and not path.is_dir()


def read_subject(path: Path) -> Subject:
    """Reads and analyses a results folder or a CSV file; raises StoreError if it is neither."""
    from dpbench import store
    from dpbench.analysis.subject import of_folder, of_published

    if is_table(path):
        return of_published(path)
    if store.holds_collectives(path) and not store.holds_sweep(path):
        return of_folder(None, store.load_collectives(path))
    return subject_of(store.load(path))


def subject_of(sweep: StoredSweep) -> Subject:
    """A sweep with the collectives in its folder, how far it is, and whether it goes on."""
    from dpbench import store
    from dpbench.analysis.subject import of_folder
    from dpbench.grid import trial_count

    folder = sweep.folder
    collectives = store.load_collectives(folder) if store.holds_collectives(folder) else None
    return replace(
        of_folder(sweep, collectives),
        planned=trial_count(sweep.spec) if sweep.spec.precision is None else None,
        running=_is_followed(folder),
    )


def _is_followed(folder: Path) -> bool:
    """Whether it runs, as far as live.json can be read: the records are good without it."""
    from dpbench.cli.messages import warn
    from dpbench.cli.watching import is_running

    try:
        return is_running(folder)
    except StoreError as error:
        warn(f"{error}; whether the sweep runs is not known, and it is not followed")
        return False
