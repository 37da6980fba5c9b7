"""The table of the torch-ddp project's benchmark, a Ruby program: bars between four columns.

    Backend | Proc Group | Batch | Images/s |
    --------+------------+-------+----------|
    gloo    | 1          | 32    | 1724.4   |

Its code also prints columns about the loss, which are not read. Each speed is a single value from
one run; the table does not have the number of timed steps.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from dpbench.analysis.estimate import LogMean
from dpbench.analysis.imported.lines import LogLine, read_lines
from dpbench.analysis.published import PublishedSpeed
from dpbench.errors import StoreError

NAME = "torch-ddp.rb"
"""Name of the imported implementation. Not torch-ddp, which is torch's own implementation, in
Python."""
COLUMNS = ("Backend", "Proc Group", "Batch", "Images/s")
_RULE = re.compile(r"[|+\-=: ]+")
_BACKEND = re.compile(r"[a-z0-9_+-]{1,20}", re.ASCII)


def read_torch_ddp(path: Path) -> tuple[PublishedSpeed, ...]:
    """The speeds of a table; raises StoreError that names the line."""
    names: list[str] = []
    closed = False
    speeds: dict[tuple[str | None, int, int | None], tuple[int, PublishedSpeed]] = {}
    lines = read_lines(path)
    for line in lines:
        cells = _cells(line)
        if "|" not in line.text or _RULE.fullmatch(line.text):
            continue
        if tuple(cells[: len(COLUMNS)]) == COLUMNS:
            names, closed = cells, line.text.endswith("|")
        elif names:
            if closed and not line.text.endswith("|"):
                raise line.error("a bar at the end, as the header has (it was cut short)")
            speed = _speed(line, cells, names)
            key = (speed.backend, speed.group_size, speed.batch_size)
            if key in speeds:
                raise line.error(f"each configuration once (it is on line {speeds[key][0]})")
            speeds[key] = (line.number, speed)
    if names and _ends_in_a_row(lines):
        raise lines[-1].error("a whole row (it was cut short)")
    if not speeds:
        raise StoreError(
            f"{path}: no table in it with the header {' | '.join(COLUMNS)} and a row below, as "
            "torch-ddp's benchmark prints"
        )
    return tuple(speed for _, speed in speeds.values())


def _ends_in_a_row(lines: Sequence[LogLine]) -> bool:
    """Whether the file ends, without a newline, in the beginning of another row."""
    above, last = lines[-2:]
    is_row = "|" in above.text and not _RULE.fullmatch(above.text)
    return is_row and bool(_BACKEND.fullmatch(last.text)) and not _RULE.fullmatch(last.text)


def _cells(line: LogLine) -> list[str]:
    """The cells of a row, with or without a bar at either end."""
    return [cell.strip() for cell in line.text.strip("|").split("|")]


def _speed(line: LogLine, cells: list[str], names: list[str]) -> PublishedSpeed:
    if len(cells) != len(names):
        raise line.error(f"{len(names)} cells ({', '.join(names)})")
    backend, group_size, batch_size, speed = cells[: len(COLUMNS)]
    if not _BACKEND.fullmatch(backend):
        raise line.error(f"the name of a backend, not {backend!r}")
    unread = names[len(COLUMNS) :]
    return PublishedSpeed(
        implementation=NAME,
        backend=backend,
        group_size=line.whole(group_size, "the group size"),
        batch_size=line.whole(batch_size, "the batch size"),
        item="images",
        speed=LogMean.of_single(line.positive(speed, "the speed")),
        source="benchmark of the torch-ddp project (Ruby), one run each",
        notes=(f"columns not read: {', '.join(unread)}",) if unread else (),
    )
