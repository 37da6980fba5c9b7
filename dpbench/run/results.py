"""Results folders: where new ones go, which one and which of its rows a command means."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING

from dpbench import folders
from dpbench.errors import UsageError
from dpbench.files import require_free
from dpbench.messages import say
from dpbench.options.shared import RowFilter

if TYPE_CHECKING:
    from dpbench.analysis.analyze import Analysis
    from dpbench.analysis.comparisons.matching import Side
    from dpbench.analysis.rows import Row
    from dpbench.folders import Collectives, Sweep
    from dpbench.specs.collective import CollectiveSpec


DATA_FILES = (folders.TRIALS_FILE, folders.SWEEP_FILE, folders.COLLECTIVES_FILE, folders.COMM_FILE)
"""Files written while measuring. A report does not count: it can be made again at any time."""


def results_folder(results_dir: Path, name: str | None, *, otherwise: str) -> Path:
    """The path of `name` in `results_dir`. Without a name it has the time and `otherwise`, and a
    number if another one was made in the same second."""
    if name is not None:
        folders.check_name(name)
        return results_dir / name
    time = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return results_dir / first_free(
        f"{time}-{otherwise}", lambda free: (results_dir / free).exists()
    )


def first_free(name: str, is_taken: Callable[[str], bool]) -> str:
    """The name, with the first number behind it that makes it free: "mlp", "mlp-2"."""
    numbered = (f"{name}-{number}" for number in count(2))
    return next(free for free in chain([name], numbered) if not is_taken(free))


def new_folder(results_dir: Path, name: str | None, *, otherwise: str) -> Path:
    """The same for new results; raises FileError if the folder holds something."""
    folder = results_folder(results_dir, name, otherwise=otherwise)
    require_free(folder, folders.RESUME_REMEDY)
    return folder


def latest_folder(command: str, *, sweeps_only: bool = True) -> Path:
    """The latest results folder, for a `command` without one; says which. Raises UsageError if
    there is none."""
    place = Path("results")
    found = [
        folder
        for folder in (place.iterdir() if place.is_dir() else ())
        if folders.holds_sweep(folder) or (folders.holds_collectives(folder) and not sweeps_only)
    ]
    if not found:
        raise UsageError(
            f"{command}: expected a results folder, but {place}/ holds none; name one, or make one "
            "with dpbench sweep"
        )
    latest = max(found, key=lambda folder: (last_measured(folder), folder.name))
    say(f"{command}: no folder given; using the latest: {latest}")
    return latest


def last_measured(folder: Path) -> float:
    """The time when something was last measured into it; 0 where that is unknown."""
    files = (folder / name for name in DATA_FILES)
    return max((file.stat().st_mtime for file in files if file.is_file()), default=0.0)


def is_table(path: Path) -> bool:
    """Whether the path is a .csv file and no results folder."""
    return path.suffix.lower() == ".csv" and not path.is_dir()


def load_stored(folder: Path) -> Sweep | Collectives:
    """The content of a results folder; raises FileError if it is none."""
    if folders.holds_collectives(folder) and not folders.holds_sweep(folder):
        return folders.load_collectives(folder)
    return folders.load_sweep(folder)


def read_analysis(path: Path) -> Analysis:
    """Read and analyze a results folder or a CSV file; raises FileError if it is neither."""
    from dpbench.analysis.analyze import Analysis, analyze
    from dpbench.analysis.rows import published_rows

    if is_table(path):
        return Analysis(name=path.name, rows=published_rows(path))
    return analyze(load_stored(path))


def select_rows(analysis: Analysis, wanted: RowFilter) -> Analysis:
    """The analysis with the wanted rows alone; raises UsageError if there are none."""
    measured = [record.spec for record in analysis.collectives]
    there: list[Row | CollectiveSpec] = [*analysis.rows, *measured]
    if there and not any(map(wanted.keeps, there)):
        raise UsageError(f"{analysis.name}: no such row; there are {wanted.choices(there)}")
    return analysis.keeping(wanted.keeps)


def load_sides(*texts: str) -> tuple[list[Side], list[str]]:
    """Load the sides of a comparison, each DIR or DIR:key=value,…, and what could not be read.

    Raises UsageError for an invalid selection, FileError for a folder that cannot be read.
    """
    from dpbench.analysis.comparisons.matching import Side

    loaded: dict[Path, Sweep] = {}
    sides, warnings = [], list[str]()
    for text in texts:
        folder, where = split_selection(text)
        path = folder.resolve()
        if path not in loaded:
            loaded[path] = folders.load_sweep(folder)
            warnings += loaded[path].warnings
        sides.append(Side(label=text, sweep=loaded[path], where=where, run_id=str(path)))
    return sides, warnings


def split_selection(text: str) -> tuple[Path, dict[str, str]]:
    """The folder and the selection of its rows, which follows the first colon.

    Raises UsageError for a selection that is not key=value[,key=value].
    """
    from dpbench.analysis.comparisons.matching import RUN_IDENTITY

    folder, colon, selection = text.partition(":")
    if not colon or Path(text).is_dir():
        return Path(text), {}
    where: dict[str, str] = {}
    for part in selection.split(","):
        key, equals, value = part.partition("=")
        if key not in RUN_IDENTITY and [*where][-1:] == ["architecture"]:  # one of its options
            where["architecture"] += f",{part}"
            continue
        if not (key and equals and value):
            raise UsageError(f"{text}: {part!r} is not key=value; write e.g. DIR:backend=gloo")
        if key in where:
            raise UsageError(f"{text}: {key} is given twice; give it one value")
        where[key] = value
    return Path(folder), where
