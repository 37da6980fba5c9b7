"""Paths on the command line as what a report is about."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dpbench.errors import StoreError, UsageError
from dpbench.messages import warn

if TYPE_CHECKING:
    from dpbench.analysis.comparisons.matching import Side
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
    from dpbench.run.watching import is_running

    try:
        return is_running(folder)
    except StoreError as error:
        warn(f"{error}; whether the sweep runs is not known, and it is not followed")
        return False


def load_sides(*texts: str) -> list[Side]:
    """The sides that are named, DIR or DIR:key=value,…; warnings of reading go to stderr.

    Raises UsageError for a selection that cannot be, StoreError for a folder that cannot.
    """
    from dpbench.analysis.comparisons.matching import Side
    from dpbench.store import load

    loaded: dict[Path, StoredSweep] = {}
    sides = []
    for text in texts:
        folder, where = split_selection(text)
        if folder.suffix.lower() == ".csv" and folder.is_file():
            raise UsageError(
                f"{folder} holds published numbers, one of each: nothing tells their spread, so "
                "nothing can be compared; dpbench report shows them"
            )
        path = folder.resolve()
        if path not in loaded:
            loaded[path] = load(folder)
            warn(*loaded[path].warnings)
        sides.append(
            Side(
                label=text,
                records=loaded[path].records,
                environments=loaded[path].environments,
                where=where,
                source=str(path),
            )
        )
    return sides


def split_selection(text: str) -> tuple[Path, dict[str, str]]:
    """The folder and what of it is meant; a folder may have a colon in its name.

    Raises UsageError if that is not written as key=value[,key=value].
    """
    from dpbench.analysis.comparisons.matching import SELECTORS

    cut = _cut(text)
    if cut is None:
        return Path(text), {}
    where: dict[str, str] = {}
    for part in text[cut + 1 :].split(","):
        key, equals, value = part.partition("=")
        if key not in SELECTORS and [*where][-1:] == ["architecture"]:  # one of its options
            where["architecture"] += f",{part}"
            continue
        if not (key and equals and value):
            raise UsageError(f"{text}: {part!r} is not key=value; write e.g. DIR:backend=gloo")
        if key in where:
            raise UsageError(f"{text}: {key} is given twice; give it one value")
        where[key] = value
    return Path(text[:cut]), where


def _cut(text: str) -> int | None:
    """Where the folder ends: at the last colon after one that exists, else before a key."""
    colons = [place for place, sign in enumerate(text) if sign == ":"]
    if not colons or Path(text).is_dir():
        return None
    of_folders = [place for place in colons if Path(text[:place]).is_dir()]
    if of_folders:
        return of_folders[-1]
    return colons[0] if "=" in text[colons[0] :] else None
