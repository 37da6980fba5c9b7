"""The parts of a Markdown document that are generated, and how they are found.

A part stands behind a comment of its own line, which a reader of the rendered page does not see:

    <!-- generated: output -->             a fenced block; its lines `$ dpbench …` are run
    <!-- generated: output, paragraph 1 -->  of what they print, so much; "…" is the rest
    <!-- generated: python -->             a fenced block; its lines `>>> …` are run
    <!-- generated: docstring sweep -->    a fenced block: what help(dpbench.sweep) says first
    <!-- generated: columns shown -->      a table, made from the code
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

MARKER = re.compile(r"<!-- generated: (?P<kind>\w+)(?:,? (?P<details>.+))? -->")
FENCE = "```"


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """One generated part."""

    kind: str
    details: str
    """The rest of the comment; empty if there is none."""
    body: str
    """What follows the comment, without the fences; every line ends in a newline."""
    line: int
    """Number of the comment's line, from 1."""


def blocks(text: str) -> list[Block]:
    """All generated parts of a document; raises ValueError where a fence is not closed."""
    return [part for part in _parts(text) if isinstance(part, Block)]


def renewed(text: str, make: Callable[[Block], str]) -> str:
    """The document with `make(block)` in the place of the body of each block."""
    return "".join(part if isinstance(part, str) else make(part) for part in _parts(text))


def _parts(text: str) -> Iterator[str | Block]:
    """The document in pieces: text that stays, and blocks."""
    lines = text.splitlines(keepends=True)
    place = 0
    while place < len(lines):
        marker = MARKER.fullmatch(lines[place].rstrip("\n"))
        yield lines[place]
        place += 1
        if marker is None:
            continue
        number = place
        fenced = place < len(lines) and lines[place].startswith(FENCE)
        if fenced:
            yield lines[place]
            place += 1
        end = _end(lines, place, fenced)
        yield Block(
            kind=marker["kind"],
            details=marker["details"] or "",
            body="".join(lines[place:end]),
            line=number,
        )
        place = end


def _end(lines: list[str], start: int, fenced: bool) -> int:
    """The closing fence, or the first line that is not of a table."""
    for place in range(start, len(lines)):
        over = lines[place].startswith(FENCE) if fenced else not lines[place].startswith("|")
        if over:
            return place
    if fenced:
        raise ValueError(f"line {start}: the fence is not closed")
    return len(lines)
