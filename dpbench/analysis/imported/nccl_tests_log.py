"""The tables in a log of nccl-tests: which lines belong to which, and what each cell is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from dpbench.analysis.imported.lines import LogLine

FIXED = ("size", "count", "type")
OPTIONAL = ("redop", "root")
TIMES = ("time", "algbw", "busbw")
WRONG = "#wrong"
NOT_CHECKED = "N/A"
_RANK = re.compile(r"#\s*Rank\s+[0-9]+\s.*\bon\s+(\S+)\s+device\s+[0-9]+\s+\[[^\]]*\]\s*(.*)")
_PROGRAM = re.compile(r"\b([a-z_]+)_perf\b")
_ROW = re.compile(r"[0-9]+\s")
_OUT_OF_BOUNDS = re.compile(r"#\s*Out of bounds values\s*:\s*[0-9]+\s+FAILED")


@dataclass(frozen=True, kw_only=True, slots=True)
class Printed:
    """What a line says of one place, out of place or in place."""

    microseconds: float
    algbw: float
    """In GB/s, as busbw."""
    busbw: float
    wrong: int | None
    """None if nobody checked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A line of a table, understood."""

    line: LogLine
    nbytes: int
    """0 where a small size was rounded down to a multiple of the ranks: nothing was sent."""
    count: int
    dtype: str
    reduction: str | None
    root: int | None
    places: tuple[Printed, ...]


@dataclass(slots=True)
class Table:
    """One run of one of the programs."""

    program: str | None = None
    """Without "_perf"; None if the log does not tell."""
    hosts: list[str] = field(default_factory=list)
    """Of each rank, as its device; empty if the log does not list them."""
    devices: list[str] = field(default_factory=list)
    header: LogLine | None = None
    names: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)


def read_tables(lines: Iterable[LogLine]) -> Iterator[tuple[LogLine, Table]]:
    """The tables that have rows, each with its header; raises StoreError that names the line."""
    table = Table()
    for line in lines:
        fresh = _started_by(line, table)
        if fresh is not table:
            if table.header is not None and table.rows:
                yield table.header, table
            table = fresh
        _take(line, table)
    if table.header is not None and table.rows:
        yield table.header, table


def _started_by(line: LogLine, table: Table) -> Table:
    """The table that the line belongs to: a new one if it is among what is printed above one."""
    if table.header is None:
        return table
    if _is_header(line):  # printed again by the same processes
        return Table(program=table.program, hosts=table.hosts, devices=table.devices)
    return Table() if _RANK.match(line.text) or _program(line) else table


def _take(line: LogLine, table: Table) -> None:
    """NCCL and launchers print between the lines; what is no row, nor about one, is not ours."""
    if program := _program(line):
        table.program = program
    elif found := _RANK.match(line.text):
        table.hosts.append(found[1])
        table.devices.append(found[2])
    elif _is_header(line):
        table.header, table.names = line, _check_names(line, line.text.lstrip("#").split())
    elif table.header is not None and not table.rows and line.text.startswith("#"):
        if "(B)" in line.text and "(us)" not in line.text:
            raise line.error("times in microseconds, '(us)'")
    elif table.header is not None and _ROW.match(line.text):
        table.rows.append(_row(line, table.names))
    elif _OUT_OF_BOUNDS.match(line.text) and WRONG not in table.names:
        raise line.error("'0 OK': results were wrong, and the table does not tell of which sizes")


def _program(line: LogLine) -> str | None:
    """In the command that was typed, or where newer versions say what starts."""
    found = _PROGRAM.search(line.text)
    return None if found is None or "concluded" in line.text else found[1]


def _is_header(line: LogLine) -> bool:
    names = line.text.removeprefix("#").split()
    return line.text.startswith("#") and tuple(names[: len(FIXED)]) == FIXED


def _check_names(line: LogLine, names: list[str]) -> list[str]:
    """The columns are the fixed ones, then a group for each place, which begins with a time."""
    starts = [at for at, name in enumerate(names) if name == TIMES[0]]
    if len(starts) not in (1, 2):
        raise line.error("one or two columns 'time'")
    if any(tuple(names[start : start + len(TIMES)]) != TIMES for start in starts):
        raise line.error(f"the columns {', '.join(TIMES)} side by side")
    return names


def _row(line: LogLine, names: Sequence[str]) -> Row:
    cells = line.text.split()
    if len(cells) != len(names):
        raise line.error(f"{len(names)} values ({' '.join(names)})")
    starts = [at for at, name in enumerate(names) if name == TIMES[0]]
    fixed = dict(zip(names[: starts[0]], cells, strict=False))
    root, reduction = fixed.get("root", "-1"), fixed.get("redop", "none")
    return Row(
        line=line,
        nbytes=line.whole(fixed["size"], "a size", least=0),
        count=line.whole(fixed["count"], "a count", least=0),
        dtype=fixed["type"],
        reduction=None if reduction == "none" else reduction,
        root=None if root == "-1" else line.whole(root, "a root", least=0),
        places=tuple(
            _printed(line, dict(zip(names[start:end], cells[start:end], strict=True)))
            for start, end in zip(starts, [*starts[1:], len(names)], strict=True)
        ),
    )


def _printed(line: LogLine, cells: dict[str, str]) -> Printed:
    wrong = cells.get(WRONG, NOT_CHECKED)
    return Printed(
        microseconds=line.positive(cells["time"], "a time"),
        algbw=line.number_at(cells["algbw"], "algbw"),
        busbw=line.number_at(cells["busbw"], "busbw"),
        wrong=None if wrong == NOT_CHECKED else line.whole(wrong, WRONG, least=0),
    )
