"""Text, JSON and CSV of `dpbench import` for collectives that nccl-tests measured."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from dpbench import units
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.fields.field import Plain, plain
from dpbench.analysis.imported.nccl_tests import ImportedCollective, ImportedSize
from dpbench.messages import one_line
from dpbench.report.answer import Answer, bullets
from dpbench.report.export.formats import WRITERS
from dpbench.report.table import MISSING, text_table
from dpbench.report.terminal import write_table
from dpbench.units import GIGA, MICRO

HEADERS = ("Size (B)", "Count", "Time (µs)", "algbw (GB/s)", "busbw (GB/s)")
FIELDS: Mapping[str, Callable[[ImportedCollective, ImportedSize], Plain]] = {
    "source": lambda one, _: one.source,
    "collective": lambda one, _: one.collective,
    "backend": lambda one, _: "nccl",
    "place": lambda one, _: one.place,
    "group_size": lambda one, _: one.group_size,
    "hosts": lambda one, _: one.hosts,
    "dtype": lambda one, _: one.dtype,
    "reduction": lambda one, _: one.reduction,
    "root": lambda one, _: one.root,
    "nbytes": lambda _, size: size.nbytes,
    "count": lambda _, size: size.count,
    "seconds": lambda _, size: size.seconds.value,
    "algorithm_bytes_per_second": lambda _, size: size.algorithm_bandwidth.value,
    "bus_bytes_per_second": lambda _, size: plain(size.bus_bandwidth),
    "sample_size": lambda _, size: size.seconds.sample_size,
    "basis": lambda _, size: size.seconds.basis,
    "wrong": lambda _, size: size.wrong,
}
"""Keys of a row of one size, in their order, and how each is read."""


def answer(found: Sequence[ImportedCollective]) -> Answer:
    """A block for each collective and place, and how to read them below."""
    below = [
        *dict.fromkeys(note for one in found for note in one.notes),
        "numbers are single values (n = 1) without an interval: each time is the mean over the "
        "iterations of one run and over ranks, and how far they spread is not in the log",
        "algbw: size ÷ time; busbw: algbw × a factor that makes it the load of each link of a "
        "ring; GB is 10⁹ bytes",
        *dict.fromkeys(f"source: {one_line(one.source)}" for one in found),
    ]
    return Answer(paragraphs=(*map(_block, found), bullets(below)), data=[*_rows(found)])


def write(found: Iterable[ImportedCollective], format: str) -> str:
    """One row a size, with the keys of FIELDS, as csv, json or jsonl."""
    text = io.StringIO()
    WRITERS[format](text, tuple(FIELDS), _rows(found))
    return text.getvalue()


def _block(one: ImportedCollective) -> str:
    devices = ", ".join(map(one_line, one.devices))
    heading = ", ".join(
        part
        for part in (
            one.label,
            one_line(one.dtype) + (f" {one_line(one.reduction)}" if one.reduction else ""),
            "" if one.root is None else f"root {one.root}",
            units.counted(one.hosts, "host") if one.hosts else "",
            devices,
        )
        if part
    )
    return f"{heading}\n{write_table(text_table(HEADERS, [_cells(size) for size in one.sizes]))}"


def _cells(size: ImportedSize) -> list[str]:
    return [
        f"{size.nbytes:,}",
        f"{size.count:,}",
        f"{size.seconds.value / MICRO:,.10g}",
        _gigabytes(size.algorithm_bandwidth),
        MISSING if size.bus_bandwidth is None else _gigabytes(size.bus_bandwidth),
    ]


def _gigabytes(bandwidth: Estimate) -> str:
    """Writes GB/s to four digits, like the times beside it."""
    return f"{bandwidth.value / GIGA:.4g}"


def _rows(found: Iterable[ImportedCollective]) -> Iterator[dict[str, Plain]]:
    for one in found:
        for size in one.sizes:
            yield {key: read(one, size) for key, read in FIELDS.items()}
