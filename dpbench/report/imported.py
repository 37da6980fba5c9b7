"""Collectives that nccl-tests measured, as people and programs read them."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence

from dpbench import units
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.fields.field import Plain
from dpbench.analysis.imported.nccl_tests import ImportedCollective, ImportedSize
from dpbench.messages import one_line
from dpbench.report.answer import Answer, bullets
from dpbench.report.export.formats import WRITERS
from dpbench.report.table import MISSING, text_table
from dpbench.report.terminal import write_table
from dpbench.units import GIGA, MICRO

HEADERS = ("Size (B)", "Count", "Time (µs)", "algbw (GB/s)", "busbw (GB/s)")
KEYS = (
    *("source", "collective", "backend", "place", "group_size", "hosts", "dtype", "reduction"),
    *("root", "nbytes", "count", "seconds", "algorithm_bytes_per_second", "bus_bytes_per_second"),
    *("sample_size", "basis", "wrong"),
)


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
    """One row a size, with the keys of KEYS, as csv, json or jsonl."""
    text = io.StringIO()
    WRITERS[format](text, KEYS, _rows(found))
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
    """To four digits, as times have them."""
    return f"{bandwidth.value / GIGA:.4g}"


def _rows(found: Iterable[ImportedCollective]) -> Iterator[dict[str, Plain]]:
    for one in found:
        for size in one.sizes:
            yield {
                "source": one.source,
                "collective": one.collective,
                "backend": "nccl",
                "place": one.place,
                "group_size": one.group_size,
                "hosts": one.hosts,
                "dtype": one.dtype,
                "reduction": one.reduction,
                "root": one.root,
                "nbytes": size.nbytes,
                "count": size.count,
                "seconds": size.seconds.value,
                "algorithm_bytes_per_second": size.algorithm_bandwidth.value,
                "bus_bytes_per_second": size.bus_bandwidth.value if size.bus_bandwidth else None,
                "sample_size": size.seconds.sample_size,
                "basis": size.seconds.basis,
                "wrong": size.wrong,
            }
