"""The sides of a comparison: results folders, or parts of them as DIR:key=value,…"""

from __future__ import annotations

from pathlib import Path

from dpbench.analysis.comparisons.matching import SELECTORS, Side
from dpbench.errors import UsageError
from dpbench.messages import warn
from dpbench.store import StoredSweep, load


def load_sides(*texts: str) -> list[Side]:
    """The sides that are named, DIR or DIR:key=value,…; warnings of reading go to stderr.

    Raises UsageError for a selection that cannot be, StoreError for a folder that cannot.
    """
    loaded: dict[Path, StoredSweep] = {}
    sides = []
    for text in texts:
        folder, where = split_selection(text)
        if folder.suffix.lower() == ".csv" and folder.is_file():
            raise UsageError(
                f"{folder} holds published numbers, single values without a spread, so nothing "
                "can be compared; dpbench report shows them"
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
