"""Parser of the output of nccl-tests (all_reduce_perf and its siblings).

    # nThread 1 nGpus 8 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 …
    #  Rank  0 Group  0 Pid  41 on  node1 device  0 [0x07] NVIDIA A100-SXM4-40GB
    #                                                    out-of-place            in-place
    #   size    count   type  redop  root    time  algbw  busbw #wrong    time  algbw  busbw #wrong
    #    (B) (elements)                      (us) (GB/s) (GB/s)           (us) (GB/s) (GB/s)
     1048576   262144  float    sum    -1   40.93  25.62  44.83      0   40.24  26.06  45.60      0

A time is the mean over the iterations of one run, averaged over ranks; their spread is not printed,
so numbers are single values without an interval. GB is 10⁹ bytes. A file may hold several such
tables, one below another. Bandwidths are recomputed from sizes and times, to more digits than are
printed, and must agree with the printed ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dpbench import units
from dpbench.analysis.communication.bandwidth import algorithm_bandwidth, bus_factor
from dpbench.analysis.estimate import Estimate, LogMean
from dpbench.analysis.imported.lines import LogLine, read_lines
from dpbench.errors import StoreError, UnknownName, UsageError
from dpbench.units import GIGA, MICRO

PLACES = ("out of place", "in place")


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedSize:
    """Values for one message size."""

    nbytes: int
    count: int
    seconds: Estimate
    algorithm_bandwidth: Estimate
    """Bytes per second."""
    bus_bandwidth: Estimate | None
    """Bus bandwidth; None if the number of ranks is not known."""
    wrong: int | None
    """Number of elements with a wrong result; None if not checked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedCollective:
    """One collective over a range of sizes, in or out of place."""

    collective: str
    """dpbench's name for the collective."""
    dtype: str
    """The log's name for the type: "float"."""
    reduction: str | None
    root: int | None
    place: str
    """One of PLACES: in place or out of place."""
    group_size: int | None
    """Number of ranks; None if the log does not list them."""
    hosts: int | None
    devices: tuple[str, ...]
    """Names of the kinds of GPUs."""
    sizes: tuple[ImportedSize, ...]
    """Sizes in rising order; those with wrong results are left out."""
    source: str
    notes: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Name: "all_reduce on nccl ×8, in place"."""
        ranks = "" if self.group_size is None else f" ×{self.group_size}"
        return f"{self.collective} on nccl{ranks}, {self.place}"


def read_nccl_tests(path: Path, collective: str | None = None) -> tuple[ImportedCollective, ...]:
    """The tables of a log; raises StoreError that names the line.

    `collective` is for logs that do not name theirs: raises UsageError where one is needed, or
    contradicts the log.
    """
    if collective is not None and collective not in PROGRAMS:
        raise UnknownName("collective", collective, PROGRAMS)
    tables = list(_read_tables(read_lines(path)))
    if not tables:
        raise StoreError(
            f"{path}: no line '# size count type …' in it with a row below, as nccl-tests prints"
        )
    return tuple(
        one
        for header, table in tables
        for one in _collectives(table, *_identify(header, table, collective))
    )


@dataclass(frozen=True, slots=True)
class _Program:
    """One of the programs of nccl-tests."""

    name: str
    """dpbench's name for it."""
    program: str
    """Name of the program without "_perf"."""
    reduces: bool | None
    """Whether it reduces; None if its column may say either."""
    rooted: bool


PROGRAMS = {
    one.name: one
    for one in (
        _Program("all_reduce", "all_reduce", reduces=True, rooted=False),
        _Program("all_gather", "all_gather", reduces=False, rooted=False),
        _Program("reduce_scatter", "reduce_scatter", reduces=True, rooted=False),
        _Program("broadcast", "broadcast", reduces=False, rooted=True),
        _Program("reduce", "reduce", reduces=True, rooted=True),
        _Program("all_to_all", "alltoall", reduces=False, rooted=False),
        _Program("gather", "gather", reduces=False, rooted=True),
        _Program("scatter", "scatter", reduces=False, rooted=True),
        _Program("send_recv", "sendrecv", reduces=None, rooted=False),
    )
}
BY_PROGRAM = {one.program: one for one in PROGRAMS.values()}


def _identify(
    header: LogLine, table: _Table, asked: str | None
) -> tuple[_Program, tuple[str, ...]]:
    """The collective: from the log, the caller, or the only one that fits."""
    where = f"{header.path}, line {header.number}"
    if table.program is not None:
        if table.program not in BY_PROGRAM:
            raise StoreError(
                f"{where}: a table of {table.program}_perf; expected one of "
                f"{', '.join(f'{name}_perf' for name in BY_PROGRAM)}"
            )
        known = BY_PROGRAM[table.program]
        if asked not in (None, known.name):
            raise UsageError(
                f"--collective {asked}: {where}: the log names {table.program}_perf; leave it out"
            )
        return known, ()
    unnamed = "the log does not name its collective"
    if asked is not None:
        return PROGRAMS[asked], (f"{unnamed}: {asked}, as asked",)
    found = _fitting(
        len(table.hosts) or None,
        [(row.reduction, row.root, p.algbw, p.busbw) for row in table.rows for p in row.places],
    )
    if len(found) != 1:
        fits = f" {' and '.join(one.name for one in found)} fit its columns;" if found else ""
        raise UsageError(
            f"{where}: {unnamed};{fits} give --collective NAME, out of {', '.join(PROGRAMS)}"
        )
    return found[0], (f"{unnamed}: {found[0].name}, the only one that fits its columns",)


_Columns = tuple[str | None, int | None, float, float]
"""Reduction, root, algbw and busbw of a line."""
DECIMALS = 0.0051
"""Rounding of bandwidths, which are printed with two decimals."""


def _fitting(ranks: int | None, printed: Iterable[_Columns]) -> list[_Program]:
    """The programs that may have printed such lines."""
    lines = list(printed)
    return [one for one in PROGRAMS.values() if all(_fits(one, ranks, *line) for line in lines)]


def _fits(
    one: _Program,
    ranks: int | None,
    reduction: str | None,
    root: int | None,
    algbw: float,
    busbw: float,
) -> bool:
    if one.reduces not in (None, reduction is not None) or one.rooted is (root is None):
        return False
    if ranks is None:
        return True
    factor = bus_factor(one.name, ranks)
    return abs(busbw - factor * algbw) <= DECIMALS * (1 + factor)


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
class _Printed:
    """Values of a line for one place, out of place or in place."""

    microseconds: float
    algbw: float
    """Bandwidth in GB/s, as busbw."""
    busbw: float
    wrong: int | None
    """Number of wrong elements; None if not checked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """A parsed line of a table."""

    line: LogLine
    nbytes: int
    """Size; 0 if a small size was rounded down to a multiple of the ranks: nothing was sent."""
    count: int
    dtype: str
    reduction: str | None
    root: int | None
    places: tuple[_Printed, ...]


@dataclass(slots=True)
class _Table:
    """One run of one of the programs."""

    program: str | None = None
    """Program without "_perf"; None if the log does not say."""
    hosts: list[str] = field(default_factory=list)
    """Host of each rank, like its device; empty if the log does not list them."""
    devices: list[str] = field(default_factory=list)
    header: LogLine | None = None
    names: list[str] = field(default_factory=list)
    rows: list[_Row] = field(default_factory=list)


def _read_tables(lines: Iterable[LogLine]) -> Iterator[tuple[LogLine, _Table]]:
    """The tables that have rows, each with its header; raises StoreError that names the line."""
    table = _Table()
    for line in lines:
        fresh = _started_by(line, table)
        if fresh is not table:
            if table.header is not None and table.rows:
                yield table.header, table
            table = fresh
        _take(line, table)
    if table.header is not None and table.rows:
        yield table.header, table


def _started_by(line: LogLine, table: _Table) -> _Table:
    """The table of the line: a new one if the line belongs to the text above a table."""
    if table.header is None:
        return table
    if _is_header(line):  # repeated by the same processes
        return _Table(program=table.program, hosts=table.hosts, devices=table.devices)
    return _Table() if _RANK.match(line.text) or _program(line) else table


def _take(line: LogLine, table: _Table) -> None:
    """Read a line; other lines, which NCCL and launchers print in between, are ignored."""
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
    """The program in the command that was typed, or in the start line of newer versions."""
    found = _PROGRAM.search(line.text)
    return None if found is None or "concluded" in line.text else found[1]


def _is_header(line: LogLine) -> bool:
    names = line.text.removeprefix("#").split()
    return line.text.startswith("#") and tuple(names[: len(FIXED)]) == FIXED


def _check_names(line: LogLine, names: list[str]) -> list[str]:
    """Check the columns: the fixed ones, then a group for each place, which begins with a time."""
    starts = [at for at, name in enumerate(names) if name == TIMES[0]]
    if len(starts) not in (1, 2):
        raise line.error("one or two columns 'time'")
    if any(tuple(names[start : start + len(TIMES)]) != TIMES for start in starts):
        raise line.error(f"the columns {', '.join(TIMES)} side by side")
    return names


def _row(line: LogLine, names: Sequence[str]) -> _Row:
    cells = line.text.split()
    if len(cells) != len(names):
        raise line.error(f"{len(names)} values ({' '.join(names)})")
    starts = [at for at, name in enumerate(names) if name == TIMES[0]]
    fixed = dict(zip(names[: starts[0]], cells, strict=False))
    root, reduction = fixed.get("root", "-1"), fixed.get("redop", "none")
    return _Row(
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


def _printed(line: LogLine, cells: dict[str, str]) -> _Printed:
    wrong = cells.get(WRONG, NOT_CHECKED)
    return _Printed(
        microseconds=line.positive(cells["time"], "a time"),
        algbw=line.number_at(cells["algbw"], "algbw"),
        busbw=line.number_at(cells["busbw"], "busbw"),
        wrong=None if wrong == NOT_CHECKED else line.whole(wrong, WRONG, least=0),
    )


DEVIATION = 0.01
"""Allowed deviation of a bandwidth from size ÷ time, besides the rounding of both."""


def _collectives(
    table: _Table, known: _Program, how: tuple[str, ...]
) -> Iterator[ImportedCollective]:
    """One result for each data type and reduction, which nccl-tests runs through, and each
    place."""
    groups: dict[tuple[str, str | None, int | None], list[_Row]] = {}
    for row in table.rows:
        groups.setdefault((row.dtype, row.reduction, row.root), []).append(row)
    ranks = len(table.hosts) or None
    for (dtype, reduction, root), printed in groups.items():
        rows = [row for row in printed if row.nbytes]
        if not rows:
            raise printed[0].line.error("a size above 0 in one of the rows")
        _check_sizes(rows)
        empty = len(printed) - len(rows)
        for number, place in enumerate(PLACES[: len(rows[0].places)]):
            sizes = [_size(row, row.places[number], known, ranks) for row in rows]
            yield ImportedCollective(
                collective=known.name,
                dtype=dtype,
                reduction=reduction,
                root=root,
                place=place,
                group_size=ranks,
                hosts=len({*table.hosts}) or None,
                devices=tuple(dict.fromkeys(table.devices)),
                sizes=tuple(
                    sorted((one for one in sizes if not one.wrong), key=lambda one: one.nbytes)
                ),
                source=f"nccl-tests, {rows[0].line.path.name}",
                notes=(*how, *_notes(sizes, empty, table)),
            )


def _check_sizes(rows: Sequence[_Row]) -> None:
    seen: dict[int, LogLine] = {}
    for row in rows:
        if (first := seen.setdefault(row.nbytes, row.line)) is not row.line:
            raise row.line.error(f"each size once (it is on line {first.number})")


def _size(row: _Row, printed: _Printed, known: _Program, ranks: int | None) -> ImportedSize:
    seconds = printed.microseconds * MICRO
    bandwidth = algorithm_bandwidth(row.nbytes, seconds)
    _check(row.line, "algbw", printed.algbw, bandwidth / GIGA, printed.microseconds)
    bus = None
    if ranks is not None:
        bus = bandwidth * bus_factor(known.name, ranks)
        _check(row.line, "busbw", printed.busbw, bus / GIGA, printed.microseconds)
    return ImportedSize(
        nbytes=row.nbytes,
        count=row.count,
        seconds=LogMean.of_single(seconds).estimate("s"),
        algorithm_bandwidth=LogMean.of_single(bandwidth).estimate("B/s"),
        bus_bandwidth=None if bus is None else LogMean.of_single(bus).estimate("B/s"),
        wrong=printed.wrong,
    )


def _check(line: LogLine, name: str, printed: float, computed: float, microseconds: float) -> None:
    """Check a printed bandwidth. Times have two decimals if short, and none if long."""
    rounding = (0.5 if microseconds >= 1000 else 0.05) / microseconds
    if abs(printed - computed) > DECIMALS + computed * (rounding + DEVIATION):
        raise line.error(
            f"{name} of {computed:.2f} GB/s, which follows from size and time, not {printed:g}"
        )


def _notes(sizes: Sequence[ImportedSize], empty: int, table: _Table) -> Iterator[str]:
    if empty:
        yield f"{units.counted(empty, 'row')} of size 0, in which nothing was sent, left out"
    wrong = sum(bool(size.wrong) for size in sizes)
    if wrong == len(sizes):
        yield "no size had right results, so that none is shown"
    elif wrong:
        yield f"{wrong} of {len(sizes)} sizes had wrong results and are left out"
    if all(size.wrong is None for size in sizes):
        yield "nobody checked the results (-c 0, or a log without #wrong)"
    if not table.hosts:
        yield "the log does not list its ranks, so that busbw cannot be told, and is left out"
    more = [name for name in table.names if name not in (*FIXED, *OPTIONAL, *TIMES, WRONG)]
    if more:
        yield f"columns not read: {', '.join(dict.fromkeys(more))}"
