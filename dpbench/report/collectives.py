"""Text and JSON of `dpbench comm`: nccl-tests' table, with intervals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from dpbench import units
from dpbench.analysis.communication.bandwidth import BUS_FACTORS
from dpbench.analysis.communication.timings import (
    SIZE_COLUMNS,
    MeasuredCollective,
    SizeCost,
    measured,
)
from dpbench.analysis.comparisons.comparability import environment_notes
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.fields import ReadField, Value, integer
from dpbench.messages import one_line
from dpbench.records.collectives import CollectiveRecord
from dpbench.report.answer import Answer, bullets, plain_estimate
from dpbench.report.table import Table, TableColumn, text_column, whole, words
from dpbench.report.terminal import bullet, write_table
from dpbench.report.values import table_of
from dpbench.store import StoredCollectives

_FIELDS = {field.key: field for field in SIZE_COLUMNS}
ERROR = _FIELDS["largest_error"]
COLUMNS: tuple[ReadField[SizeCost], ...] = (
    _FIELDS["nbytes"],
    integer("count", "Elements of the message.", header="Count", style="grouped"),
    _FIELDS["seconds"],
    ERROR,
    _FIELDS["algorithm_bytes_per_second"],
    _FIELDS["bus_bytes_per_second"],
    _FIELDS["share_of_copies"],
    integer(
        "n",
        "Repetitions, each in fresh processes.",
        lambda size: size.seconds.sample_size,
        header="n",
    ),
)
JSON_KEYS = {
    "algorithm_bytes_per_second": "algorithm_bandwidth",
    "bus_bytes_per_second": "bus_bandwidth",
    "copy_bytes_per_second": "copy_bandwidth",
}
"""Names in --json, which are older than those of exported files."""


def answer(records: Iterable[CollectiveRecord], *, notes: Sequence[str] = ()) -> Answer:
    """A block for each collective, backend and group size, and how to read them below; as data,
    seconds, bytes per second, and shares as fractions."""
    found = measured(records)
    return Answer(
        paragraphs=(*map(_block, found), bullets([*_definitions(found), *notes])),
        data=[_plain(one) for one in found],
    )


def stored_answer(stored: StoredCollectives) -> Answer:
    """The answer for a results folder, with notes on its environments."""
    return answer(stored.records, notes=_environment_notes(stored))


def _environment_notes(stored: StoredCollectives) -> tuple[str, ...]:
    return environment_notes(stored.records, stored.environments, noun="measurement")


def _block(one: MeasuredCollective) -> str:
    lines = [_heading(one)]
    if one.sizes:
        lines.append(write_table(_size_table([one]).with_wrapped_headers))
    lines += [bullet(text) for text in _remarks(one)]
    return "\n".join(lines)


def _remarks(one: MeasuredCollective) -> Iterable[str]:
    """Remarks on measurements besides the sizes, and on failures."""
    yield from _failures(one)
    for reason in dict.fromkeys(one.tried_again_after):
        yield f"tried again after {one_line(reason)}"


def _size_table(found: Sequence[MeasuredCollective]) -> Table:
    """A row for each size; without errors where all records are from before they were measured."""
    sizes = [size for one in found for size in one.sizes]
    has_errors = any(size.largest_error is not None for size in sizes)
    return table_of([column for column in COLUMNS if has_errors or column is not ERROR], sizes)


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
    table = _size_table(found)
    specs = [one.spec for one in found for _ in one.sizes]
    return Table(
        key="collectives",
        caption="Collectives by message size",
        columns=(
            text_column("Collective"),
            text_column("Backend"),
            TableColumn(key="ranks", header="Ranks", meaning="Processes that take part."),
            *table.columns,
        ),
        rows=tuple(
            replace(
                row,
                cells=(
                    words(spec.collective),
                    words(spec.backend),
                    whole(spec.group_size),
                    *row.cells,
                ),
            )
            for spec, row in zip(specs, table.rows, strict=True)
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
    yield from _environment_notes(stored)


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


def _plain(one: MeasuredCollective) -> dict[str, Any]:
    return {
        **one.identity,
        "failures": [{"status": status.value, "reason": reason} for status, reason in one.failures],
        "sizes": [
            {JSON_KEYS.get(f.key, f.key): _plain_value(f.read(size)) for f in SIZE_COLUMNS}
            for size in one.sizes
        ],
    }


def _plain_value(value: Value) -> Any:
    return plain_estimate(value) if isinstance(value, Estimate) else value
