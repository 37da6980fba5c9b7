"""Every error that a user of dpbench can cause, as a sentence: what, got, expected, remedy.

Errors of ranks reach the launcher as text. A trial that fails is a record with a status and a
reason, never an exception.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

PASSED, FAILED, USAGE, REGRESSED, INCONCLUSIVE, NOT_COMPARABLE, WRONG_GRADIENTS = range(7)
"""Exit statuses of commands; INCONCLUSIVE is that of measurements that spread too much to decide,
and 128 + its number that of a signal."""


class DpbenchError(Exception):
    """Base of all errors that the command line prints as one line."""

    exit_status = FAILED


class UsageError(DpbenchError):
    """A value or a dataset of the user that cannot be used."""

    exit_status = USAGE


class NotComparable(UsageError):
    """Two sides that must not be compared, or have nothing in common."""

    exit_status = NOT_COMPARABLE


MAX_KNOWN_LISTED = 30
"""Known names that an error lists beside the nearest one."""


def unknown_name(what: str, got: str, known: Iterable[str]) -> UsageError:
    """The error about a name outside its registry, given as `what`."""
    return UsageError(f"{what}: got {got!r}; {expected_name(got, [*known])}")


def expected_name(name: str, known: Collection[str] | Mapping[str, str]) -> str:
    """The end of an error on a name that is not known: the nearest one that is, and all of them
    unless they are many. A mapping gives several spellings of a name."""
    near = nearest_name(name, known)
    spellings = known if isinstance(known, Mapping) else {one: one for one in known}
    offered = dict.fromkeys(spellings.values())
    listed = f"{'one of ' if len(offered) > 1 else ''}{', '.join(offered)}"
    if near is None:
        return f"expected {listed}"
    guess = f"did you mean {spellings[near]!r}?"
    return f"{guess} Expected {listed}" if len(offered) <= MAX_KNOWN_LISTED else guess


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """The known name that begins with this one, or is spelled most like it; None if none is."""
    plain = {one.lower(): one for one in known}
    near = [one for one in plain if name and one.startswith(name.lower())]
    near = near or difflib.get_close_matches(name.lower(), plain, n=1, cutoff=0.5)
    return plain[near[0]] if near else None


def near_path(path: str | Path) -> str:
    """The end of an error on a path that does not exist: it with each name spelled like the nearest
    one that is there; "" if none is."""
    missing = Path(path)
    found = Path(missing.anchor)
    for name in missing.relative_to(found).parts:
        names = list[str]()
        with suppress(OSError):
            names = [one.name for one in found.iterdir()]
        near = difflib.get_close_matches(name, [".", "..", *names], n=1, cutoff=0.7)
        if not near:
            return ""
        found /= near[0]
    return f"; did you mean {found}?"


def no_file(path: str | Path) -> str:
    """What an error says of a file that is not there."""
    return f"no file {path} here ({Path.cwd()}){near_path(path)}"


class FileError(DpbenchError):
    """A results folder or file that cannot be read or written."""

    exit_status = USAGE


class TrainingFailed(DpbenchError):
    """A rank of a training or a script ended early; a training keeps its checkpoints."""


def require_finite(what: str, value: float, where: str) -> None:
    """Raise TrainingFailed, with the value and its place, unless it is finite."""
    if not math.isfinite(value):
        raise TrainingFailed(
            f"{what} is {value} in {where}; lower the learning rate, warm it up, or clip the "
            "gradients with a max norm"
        )


class Interrupted(DpbenchError):
    """A signal ended the work; what was measured before is stored."""

    def __init__(self, signal_number: int, message: str = "interrupted") -> None:
        super().__init__(message)
        self.signal_number = signal_number
        self.exit_status = 128 + signal_number
