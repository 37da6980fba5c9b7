"""Measured collectives as people and programs read them: nccl-tests' table, with intervals."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from dpbench import units
from dpbench.analysis.communication.cost_models import BUS_FACTORS
from dpbench.analysis.communication.timings import (
    ExchangeCost,
    MeasuredCollective,
    OverlapCost,
    SizeCost,
    measured,
)
from dpbench.analysis.comparisons.comparability import environment_notes
from dpbench.analysis.estimate import Estimate
from dpbench.collectives import CollectiveRecord
from dpbench.messages import one_line
from dpbench.report.answer import Answer, bullets, plain_estimate
from dpbench.report.numbers import or_missing, percentage, plus_minus, significant, time_text
from dpbench.report.table import (
    NOTHING,
    Table,
    TableCell,
    TableColumn,
    TableRow,
    text_column,
    whole,
    words,
)
from dpbench.report.terminal import bullet, write_table
from dpbench.store import StoredCollectives

ERROR = "error"
COLUMNS = (
    TableColumn(
        key="size (b)",
        header="Size (B)",
        wrapped="Size\n(B)",
        meaning="Size of the message in bytes; of all_gather and reduce_scatter of the whole, of "
        "which each rank holds its part.",
    ),
    TableColumn(key="count", header="Count", meaning="Elements of the message."),
    TableColumn(
        key="time",
        header="Time",
        meaning="Time of one call on the slowest rank: the median over samples, the geometric mean "
        "over repetitions.",
    ),
    TableColumn(
        key=ERROR,
        header="Error",
        meaning="Largest error of a result on values that have to be rounded, over all ranks, "
        "relative to exact arithmetic; 0 where values are only moved.",
    ),
    TableColumn(
        key="algbw (gb/s)",
        header="algbw (GB/s)",
        wrapped="algbw\n(GB/s)",
        meaning="Size ÷ time, in 10⁹ bytes per second.",
    ),
    TableColumn(
        key="busbw (gb/s)",
        header="busbw (GB/s)",
        wrapped="busbw\n(GB/s)",
        meaning="algbw × the factor that makes it the load of each link of a ring, as nccl-tests "
        "defines it, in 10⁹ bytes per second.",
    ),
    TableColumn(
        key="of copies (%)",
        header="of copies (%)",
        wrapped="of copies\n(%)",
        meaning="algbw ÷ the bandwidth of copying as many bytes from one tensor to another by all "
        "ranks at once, in percent.",
    ),
    TableColumn(key="n", header="n", meaning="Repetitions, each in fresh processes."),
)


def answer(records: Iterable[CollectiveRecord], *, notes: Sequence[str] = ()) -> Answer:
    """A block for each collective, backend and group size, and how to read them below; as data,
    seconds, bytes per second, and shares as fractions."""
    found = measured(records)
    return Answer(
        paragraphs=(*map(_block, found), bullets([*_definitions(found), *notes])),
        data=[_plain(one) for one in found],
    )


def _block(one: MeasuredCollective) -> str:
    lines = [_heading(one)]
    if one.sizes:
        columns = [
            replace(column, header=column.wrapped or column.header) for column in _columns_of([one])
        ]
        sizes = tuple(TableRow(cells=_size_cells(one, size, columns)) for size in one.sizes)
        lines.append(write_table(Table(columns=tuple(columns), rows=sizes)))
    lines += [bullet(text) for text in _remarks(one)]
    return "\n".join(lines)


def _remarks(one: MeasuredCollective) -> Iterable[str]:
    """Remarks on measurements besides the sizes, and on failures."""
    yield from _exchanges(one.exchanges)
    yield from map(_overlap, one.overlaps)
    yield from _failures(one)
    for reason in dict.fromkeys(one.tried_again_after):
        yield f"tried again after {one_line(reason)}"


def _columns_of(found: Sequence[MeasuredCollective]) -> Sequence[TableColumn]:
    """Without that of errors where all records are from before they were measured."""
    has_errors = any(size.largest_error is not None for one in found for size in one.sizes)
    return [column for column in COLUMNS if has_errors or column.key != ERROR]


def _heading(one: MeasuredCollective) -> str:
    """Which collective of what, by whom."""
    spec = one.spec
    parts = [spec.label, spec.dtype, units.counted(spec.threads_per_replica, "thread") + " a rank"]
    if one.nodes > 1:
        parts.append(f"{one.nodes} hosts")
    devices = dict.fromkeys(device.partition(":")[0] for device in spec.devices)
    return ", ".join([*parts, "/".join(devices)])


def collectives_table(stored: StoredCollectives) -> Table:
    """A row for each collective, backend, number of ranks and size, as the page shows them."""
    found = measured(stored.records)
    columns = _columns_of(found)
    return Table(
        key="collectives",
        caption="Collectives by message size",
        columns=(
            text_column("Collective"),
            text_column("Backend"),
            TableColumn(key="ranks", header="Ranks", meaning="Processes that take part."),
            *columns,
        ),
        rows=tuple(
            TableRow(
                cells=(
                    words(one.spec.collective),
                    words(one.spec.backend),
                    whole(one.spec.group_size),
                    *_size_cells(one, size, columns),
                )
            )
            for one in found
            for size in one.sizes
        ),
    )


def collective_notes(stored: StoredCollectives) -> Iterable[str]:
    """Notes on each block's measurement, its costs besides its sizes, and how to read the table."""
    found = measured(stored.records)
    for one in found:
        yield _heading(one)
        for remark in _remarks(one):
            yield f"{one.spec.label}: {remark}"
    yield from _definitions(found)
    yield from environment_notes(stored.records, stored.environments, noun="measurement")


def _size_cells(
    one: MeasuredCollective, size: SizeCost, columns: Sequence[TableColumn]
) -> tuple[TableCell, ...]:
    """Below `columns`, which are of COLUMNS; elements of one type are as many as their bytes
    say."""
    count = size.nbytes // _item_bytes(one.spec.dtype)
    copied = size.copy_share
    error = size.largest_error
    cells = (
        whole(size.nbytes, f"{size.nbytes:,}"),
        whole(count, f"{count:,}"),
        TableCell(text=time_text(size.seconds), sort=size.seconds.value),
        NOTHING if error is None else TableCell(text=f"{error:.0e}" if error else "0", sort=error),
        TableCell(text=_plainly(size.algorithm_bandwidth), sort=size.algorithm_bandwidth.value),
        TableCell(text=_bandwidth(size.bus_bandwidth), sort=size.bus_bandwidth.value),
        TableCell(text=or_missing(copied, _share), sort=None if copied is None else copied.value),
        whole(size.seconds.sample_size),
    )
    shown = {column.key for column in columns}
    return tuple(c for c, column in zip(cells, COLUMNS, strict=True) if column.key in shown)


def _bandwidth(estimate: Estimate) -> str:
    if estimate.interval is None:
        return _plainly(estimate)
    return significant(estimate.scaled(1 / units.GIGA, unit="GB/s"))


def _share(estimate: Estimate) -> str:
    """In percent; of small messages, which are all latency, only that it is small."""
    if estimate.value < 0.01:
        return "< 1"
    percents = estimate.scaled(100, unit="%")
    return significant(percents) if percents.interval else f"{percents.value:.2g}"


def _plainly(estimate: Estimate) -> str:
    """Without its interval, about to the digits that this supports: busbw beside it shows it."""
    value, digits = estimate.value / units.GIGA, 3
    if reach := (estimate.half_width or 0.0) / units.GIGA:
        digits = min(max(math.floor(math.log10(value)) - math.floor(math.log10(reach)) + 1, 2), 4)
    text = f"{value:.{digits}g}"
    return f"{float(text):,.0f}" if "e+" in text else text


def _item_bytes(dtype: str) -> int:
    """Bytes of an item: 4 for "float32"; torch's names end with their bits."""
    bits = re.search(r"[0-9]+$", dtype)
    assert bits is not None, dtype
    return int(bits[0]) // 8


def _exchanges(costs: Sequence[ExchangeCost]) -> Iterable[str]:
    """All sizes in one line: they are a second curve, and JSON has it whole."""
    listed = (f"{units.bytes_exact(c.nbytes)} {time_text(c.seconds)}" for c in costs)
    if costs:
        yield f"as a bucket in a step: {', '.join(listed)}"


def _overlap(cost: OverlapCost) -> str:
    stretch = plus_minus(cost.stretch, two_after_one=False, plain_decimals=2)
    return (
        f"{units.bytes_exact(cost.nbytes)} while the ranks compute: {stretch} × as long as alone; "
        f"{_lost(cost.lost_share)}"
    )


def _lost(share: Estimate) -> str:
    """An interval that is wider than all that is possible tells nothing."""
    if share.interval is not None and share.interval[1] - share.interval[0] > 1:
        return f"cannot tell how much of the computing is lost (n = {share.sample_size})"
    return f"meanwhile {percentage(share)} of the computing is lost"


def _failures(one: MeasuredCollective) -> Iterable[str]:
    """Equal reasons once, with how many repetitions they ended."""
    for status, reason in dict.fromkeys(one.failures):
        count = one.failures.count((status, reason))
        times = f" ({units.counted(count, 'repetition')})" if one.repetitions or count > 1 else ""
        yield f"{status.words}{times}{f': {one_line(reason)}' if reason else ''}"


def _definitions(found: Sequence[MeasuredCollective]) -> Iterable[str]:
    """How the tables are to be read."""
    full = [one for one in found if one.sizes]
    if not full:
        return
    names = dict.fromkeys(one.spec.collective for one in full)
    yield (
        "size: the bytes of the message, of all_gather and reduce_scatter the whole, of which "
        "each rank holds its part; count: its elements"
    )
    yield (
        "time: of one call on the slowest rank, the median over samples; of n repetitions, each "
        "in fresh processes, the geometric mean with its 95 % t interval on logarithms"
    )
    if any(size.seconds.interval is None for one in full for size in one.sizes):
        yield "times without an interval are single values (n = 1)"
    factors = "; ".join(f"{name} {BUS_FACTORS[name].formula}" for name in names)
    yield (
        "algbw: size ÷ time; busbw: algbw × a factor that makes it the load of each link of a "
        f"ring, as nccl-tests defines it ({factors}), so that the relative intervals of both are "
        "the same; GB is 10⁹ bytes"
    )
    yield (
        "of copies: algbw ÷ the bandwidth of copying as many bytes from one tensor to another, by "
        "all ranks at once"
    )
    yield "every result was compared with what it must be before it was timed"
    if any(size.largest_error is not None for one in full for size in one.sizes):
        yield (
            "error: the largest of any rank on values that have to be rounded, relative to exact "
            "arithmetic; 0 where values are only moved"
        )
    if any(one.exchanges for one in full):
        yield (
            "as a bucket in a step: where caches are cold and threads asleep, from when the last "
            "rank has filled its bucket with gradients"
        )
    if any(one.overlaps for one in full):
        yield (
            "computing that is lost: (computation beside the collective - alone) ÷ the time that "
            "both are under way; 0 % is perfect overlap, 100 % none; its 95 % t interval is over "
            "repetitions, and nothing is told by one that is wider than 100 %"
        )


def _plain(one: MeasuredCollective) -> dict[str, Any]:
    spec = one.spec
    return {
        "collective": spec.collective,
        "backend": spec.backend,
        "group_size": spec.group_size,
        "nodes": one.nodes,
        "dtype": spec.dtype,
        "threads_per_replica": spec.threads_per_replica,
        "repetitions": one.repetitions,
        "failures": [{"status": status.value, "reason": reason} for status, reason in one.failures],
        "sizes": [
            {
                "nbytes": size.nbytes,
                "samples": size.samples,
                "largest_error": size.largest_error,
                "seconds": plain_estimate(size.seconds),
                "algorithm_bandwidth": plain_estimate(size.algorithm_bandwidth),
                "bus_bandwidth": plain_estimate(size.bus_bandwidth),
                "copy_bandwidth": plain_estimate(size.copy_bandwidth),
                "share_of_copies": plain_estimate(size.copy_share),
            }
            for size in one.sizes
        ],
        "exchanges": [
            {
                "nbytes": cost.nbytes,
                "seconds": plain_estimate(cost.seconds),
                "copy_seconds": plain_estimate(cost.copy_seconds),
            }
            for cost in one.exchanges
        ],
        "overlaps": [
            {
                "nbytes": cost.nbytes,
                "seconds": plain_estimate(cost.seconds),
                "stretch": plain_estimate(cost.stretch),
                "lost_share": plain_estimate(cost.lost_share),
            }
            for cost in one.overlaps
        ],
    }
