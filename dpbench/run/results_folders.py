"""Results folders: where new ones go, and which one a command means."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path

from dpbench import folders
from dpbench.errors import UsageError
from dpbench.files import require_free
from dpbench.messages import say

DATA_FILES = (folders.TRIALS_FILE, folders.SWEEP_FILE, folders.COLLECTIVES_FILE, folders.COMM_FILE)
"""Files written while measuring. A report does not count: it can be made again at any time."""


def results_folder(
    results_dir: Path, name: str | None, *, otherwise: str, is_new: bool = False
) -> Path:
    """The path of `name` in `results_dir`. Without a name it has the time and `otherwise`, and a
    number if another one was made in the same second.

    Raises FileError for a new folder that exists and holds something.
    """
    if name is not None:
        folders.check_name(name)
    else:
        time = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        name = first_free(f"{time}-{otherwise}", lambda free: (results_dir / free).exists())
    folder = results_dir / name
    if is_new:
        require_free(folder, folders.RESUME_REMEDY)
    return folder


def first_free(name: str, is_taken: Callable[[str], bool]) -> str:
    """The name, with the first number behind it that makes it free: "mlp", "mlp-2"."""
    numbered = (f"{name}-{number}" for number in count(2))
    return next(free for free in chain([name], numbered) if not is_taken(free))


def results_to_read(command: str, given: Path | None, *, sweeps_only: bool = True) -> Path:
    """The results that a `command` reads: those that are given or, of a directory of results
    folders, the latest; says which. Without one, the directory is results/.

    Raises UsageError if that holds none.
    """

    def holds_results(folder: Path) -> bool:
        others = not sweeps_only and folders.holds_collectives(folder)
        return folders.holds_sweep(folder) or others

    place = given or Path("results")
    found = [] if holds_results(place) else [*filter(holds_results, place.glob("*"))]
    if found:
        latest = max(found, key=lambda folder: (last_measured(folder), folder.name))
        say(f"{command}: using the latest in {place}: {latest}")
        return latest
    if given is None:
        raise UsageError(
            f"{command}: expected a results folder, but {place}/ holds none; name one, or the "
            "directory that it is in, or make one with dpbench sweep"
        )
    return given


def last_measured(folder: Path) -> float:
    """The time when something was last measured into it; 0 where that is unknown."""
    files = (folder / name for name in DATA_FILES)
    return max((file.stat().st_mtime for file in files if file.is_file()), default=0.0)
