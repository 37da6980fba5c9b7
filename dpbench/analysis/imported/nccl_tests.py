"""Output of nccl-tests (all_reduce_perf and its siblings), as people paste and keep it.

    # nThread 1 nGpus 8 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 …
    #  Rank  0 Group  0 Pid  41 on  node1 device  0 [0x07] NVIDIA A100-SXM4-40GB
    #                                                    out-of-place            in-place
    #   size    count   type  redop  root    time  algbw  busbw #wrong    time  algbw  busbw #wrong
    #    (B) (elements)                      (us) (GB/s) (GB/s)           (us) (GB/s) (GB/s)
     1048576   262144  float    sum    -1   40.93  25.62  44.83      0   40.24  26.06  45.60      0

A time is the mean over the iterations of one run, averaged over ranks; how far they spread is not
printed, so numbers are single values without an interval. GB is 10⁹ bytes. A file may hold several
such tables, one below another. Bandwidths are computed again from sizes and times, to more digits
than are printed, and must agree with what is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpbench import units
from dpbench.analysis.communication.bandwidth import algorithm_bandwidth, bus_factor
from dpbench.analysis.estimate import Estimate, LogMean
from dpbench.analysis.imported.lines import LogLine, read_lines
from dpbench.analysis.imported.nccl_tests_collectives import (
    BY_PROGRAM,
    DECIMALS,
    OF_NCCL_TESTS,
    NcclTestsCollective,
    fitting,
)
from dpbench.analysis.imported.nccl_tests_log import (
    FIXED,
    OPTIONAL,
    TIMES,
    WRONG,
    Printed,
    Row,
    Table,
    read_tables,
)
from dpbench.errors import StoreError, UnknownName, UsageError
from dpbench.units import GIGA, MICRO

PLACES = ("out of place", "in place")
DEVIATION = 0.01
"""What a bandwidth may be off size ÷ time beside the rounding of both."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedSize:
    """One message size."""

    nbytes: int
    count: int
    seconds: Estimate
    algorithm_bandwidth: Estimate
    """Bytes per second."""
    bus_bandwidth: Estimate | None
    """None where the number of ranks is not known."""
    wrong: int | None
    """Elements with a wrong result; None if nobody checked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedCollective:
    """One collective over a range of sizes, in or out of place."""

    collective: str
    """As dpbench calls it."""
    dtype: str
    """As the log calls it: "float"."""
    reduction: str | None
    root: int | None
    place: str
    """One of PLACES."""
    group_size: int | None
    """None where the log does not list its ranks."""
    hosts: int | None
    devices: tuple[str, ...]
    """Names of the kinds of GPUs."""
    sizes: tuple[ImportedSize, ...]
    """Rising; those with wrong results are left out."""
    source: str
    notes: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """How people name it: "all_reduce on nccl ×8, in place"."""
        ranks = "" if self.group_size is None else f" ×{self.group_size}"
        return f"{self.collective} on nccl{ranks}, {self.place}"


def read_nccl_tests(path: Path, collective: str | None = None) -> tuple[ImportedCollective, ...]:
    """The tables of a log; raises StoreError that names the line.

    `collective` is for logs that do not name theirs: raises UsageError where one is needed, or
    contradicts the log.
    """
    if collective is not None and collective not in OF_NCCL_TESTS:
        raise UnknownName("collective", collective, OF_NCCL_TESTS)
    tables = list(read_tables(read_lines(path)))
    if not tables:
        raise StoreError(
            f"{path}: no line '# size count type …' in it with a row below, as nccl-tests prints"
        )
    return tuple(
        one
        for header, table in tables
        for one in _collectives(table, *_identify(header, table, collective))
    )


def _identify(
    header: LogLine, table: Table, asked: str | None
) -> tuple[NcclTestsCollective, tuple[str, ...]]:
    """Which collective it is: the log's own word, the caller's, or the only one that fits."""
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
        return OF_NCCL_TESTS[asked], (f"{unnamed}: {asked}, as asked",)
    found = fitting(
        len(table.hosts) or None,
        [(row.reduction, row.root, p.algbw, p.busbw) for row in table.rows for p in row.places],
    )
    if len(found) != 1:
        fits = f" {' and '.join(one.name for one in found)} fit its columns;" if found else ""
        raise UsageError(
            f"{where}: {unnamed};{fits} give --collective NAME, out of {', '.join(OF_NCCL_TESTS)}"
        )
    return found[0], (f"{unnamed}: {found[0].name}, the only one that fits its columns",)


def _collectives(
    table: Table, known: NcclTestsCollective, how: tuple[str, ...]
) -> Iterator[ImportedCollective]:
    """One for each data type and reduction, which nccl-tests runs through, and each place."""
    groups: dict[tuple[str, str | None, int | None], list[Row]] = {}
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


def _check_sizes(rows: Sequence[Row]) -> None:
    seen: dict[int, LogLine] = {}
    for row in rows:
        if (first := seen.setdefault(row.nbytes, row.line)) is not row.line:
            raise row.line.error(f"each size once (it is on line {first.number})")


def _size(
    row: Row, printed: Printed, known: NcclTestsCollective, ranks: int | None
) -> ImportedSize:
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
    """Times have two decimals where they are short, down to none where they are long."""
    rounding = (0.5 if microseconds >= 1000 else 0.05) / microseconds
    if abs(printed - computed) > DECIMALS + computed * (rounding + DEVIATION):
        raise line.error(
            f"{name} of {computed:.2f} GB/s, which follows from size and time, not {printed:g}"
        )


def _notes(sizes: Sequence[ImportedSize], empty: int, table: Table) -> Iterator[str]:
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
