"""The results folders of a directory: which there are, what is in each, and which is the latest."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path

from dpbench import store, units
from dpbench.errors import DpbenchError, UsageError
from dpbench.messages import say
from dpbench.run.shared_options import FolderOptions

WRITTEN = (
    *(store.TRIALS_FILE, store.SWEEP_FILE, store.LIVE_FILE),
    *(store.COLLECTIVES_FILE, store.COMM_FILE),
)
"""Files written while measuring. A report does not count: it can be made again at any time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedResults:
    """One results folder in a few words."""

    folder: Path
    written_utc: str
    """When it was last measured into, to the minute."""
    rows: int
    status: str
    hardware: str


def results_folder(results_dir: Path, name: str | None, *, otherwise: str) -> Path:
    """`name` in the folder of all, or the time and what else tells it apart."""
    if name is not None:
        store.check_name(name)
        return results_dir / name
    time = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return results_dir / f"{time}-{otherwise}"


def free(folder: Path) -> Path:
    """The folder, or where another one was made in the same second, with a number."""
    numbered = (folder.with_name(f"{folder.name}-{number}") for number in count(2))
    return next(one for one in chain((folder,), numbered) if not one.exists())


def results_folders(directory: Path, *, sweeps_only: bool = False) -> list[Path]:
    """The results folders directly in a directory, the latest last."""
    if not directory.is_dir():
        return []
    found = [
        folder
        for folder in directory.iterdir()
        if store.holds_sweep(folder) or (store.holds_collectives(folder) and not sweeps_only)
    ]
    return sorted(found, key=lambda folder: (_written(folder), folder.name))


def latest_folders(
    command: str, count: int = 1, *, sweeps_only: bool = True, directory: Path | None = None
) -> list[Path]:
    """The latest results folders, the latest last, and says which; `directory` is where sweeps go
    unless they are told otherwise.

    Raises UsageError if there are too few.
    """
    place = FolderOptions.results_dir if directory is None else directory
    found = results_folders(place, sweeps_only=sweeps_only)[-count:]
    if len(found) < count:
        there = "none" if not found else f"only {found[0]}"
        wanted = units.counted(count, "results folder")
        raise UsageError(
            f"{command}: expected {wanted}, but {place}/ holds {there}; name one, or make one with "
            "dpbench sweep"
        )
    named = " and ".join(map(str, found))
    say(f"{command}: no folder given; taking the latest{'' if count == 1 else ' two'}: {named}")
    return found


def latest_folder(command: str, *, sweeps_only: bool = True) -> Path:
    """The latest results folder; says which, and raises UsageError if there is none."""
    return latest_folders(command, sweeps_only=sweeps_only)[0]


def listed(folder: Path) -> ListedResults:
    """The content of a results folder, or why it cannot be read."""
    try:
        rows, status, hardware = _sweep(folder) if store.holds_sweep(folder) else _comm(folder)
    except (DpbenchError, OSError) as error:
        rows, status, hardware = 0, f"unreadable: {error}", ""
    written = datetime.fromtimestamp(_written(folder), UTC).isoformat(timespec="minutes")
    return ListedResults(
        folder=folder,
        written_utc=written.removesuffix("+00:00") + "Z",
        rows=rows,
        status=status,
        hardware=hardware,
    )


def _sweep(folder: Path) -> tuple[int, str, str]:
    from dpbench.run.watching import WatchedSweep

    sweep = WatchedSweep(folder)
    sweep.look()
    state = sweep.state
    words: list[str] = [sweep.ending or "running"]
    if sweep.ending != "finished":
        words[0] += f" ({state.done:,} of {units.counted(state.planned_in_all, 'trial')})"
    counts = Counter(row.state for row in state.rows)
    words += [f"{counts[name]:,} {name}" for name in ("failed", "skipped") if counts[name]]
    stored = store.load(folder)
    used = {name for record in stored.records for name in record.environment_ids}
    return len(state.rows), ", ".join(words), _hardware(stored, used)


def _comm(folder: Path) -> tuple[int, str, str]:
    stored = store.load_collectives(folder)
    statuses = Counter(record.status.words for record in stored.records)
    words = [f"{count:,} {name}" for name, count in statuses.items()]
    rows = {record.collective.configuration for record in stored.records}
    used = {record.environment_id for record in stored.records}
    return len(rows), f"collectives: {', '.join(words) or 'none'}", _hardware(stored, used)


def _hardware(stored: store.StoredSweep | store.StoredCollectives, used: set[str]) -> str:
    from dpbench.report.charts.source import environment_line

    return environment_line(stored.environments, used)


def _written(folder: Path) -> float:
    """When something was measured into it; 0 where that cannot be told."""
    times = [0.0]
    for name in WRITTEN:
        try:
            times.append((folder / name).stat().st_mtime)
        except OSError:
            continue
    return max(times)
