"""Where something new is kept: in a folder of the name that was given, or of the time."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path

from dpbench import store


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
