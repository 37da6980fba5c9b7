"""Lines of another tool's log, and errors in them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from dpbench.errors import StoreError
from dpbench.values import shorten

_NUMBER = re.compile(r"[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]{1,3})?", re.ASCII)
_WHOLE = re.compile(r"[0-9]{1,18}", re.ASCII)
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PREFIX = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:.,]+(Z|[+-][0-9:]+)?\s+)?"
    r"(\[[0-9]+,[0-9]+\](<std(out|err)>)?:\s?|\s*[0-9]+:\s)?",
    re.ASCII,
)
"""Prefixes of lines: times by loggers, tags of ranks by mpirun --tag-output, horovodrun and srun
--label."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line without surrounding blanks."""

    path: Path
    number: int
    text: str

    def error(self, expected: str) -> StoreError:
        got = shorten(self.text)
        return StoreError(f"{self.path}, line {self.number}: expected {expected}, got {got}")

    def number_at(self, token: str, what: str) -> float:
        """A token of the line as a finite number that is not negative."""
        value = float(token) if _NUMBER.fullmatch(token) else math.nan
        if not math.isfinite(value):
            raise self.error(f"a number as {what}, not {shorten(token)}")
        return value

    def positive(self, token: str, what: str) -> float:
        if (value := self.number_at(token, what)) <= 0:
            raise self.error(f"a number above zero as {what}, not {shorten(token)}")
        return value

    def whole(self, token: str, what: str, *, least: int = 1) -> int:
        if not _WHOLE.fullmatch(token) or int(token) < least:
            raise self.error(f"a whole number from {least} on as {what}, not {shorten(token)}")
        return int(token)


def read_lines(path: Path) -> list[LogLine]:
    """All lines without times, tags of ranks and colours; raises StoreError if the file is no
    text."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise StoreError(f"{path} is not text in UTF-8: {error}") from None
    return [
        LogLine(path, number, _PREFIX.sub("", _COLOUR.sub("", line), count=1).strip())
        for number, line in enumerate(text.split("\n"), 1)
    ]
