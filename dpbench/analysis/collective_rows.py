"""Measured collectives as tidy rows: one for each message size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dpbench.analysis.communication.timings import MeasuredCollective, SizeCost, measured
from dpbench.analysis.fields import Field, Plain, ReadField, integer, read_row, text, with_interval
from dpbench.collectives import CollectiveRecord

SPEC_FIELDS: tuple[ReadField[MeasuredCollective], ...] = (
    text("collective", "What the ranks do together.", lambda m: m.spec.collective, required=True),
    text("backend", "How the bytes travel.", lambda m: m.spec.backend, required=True),
    integer("group_size", "Ranks that take part.", lambda m: m.spec.group_size, required=True),
    integer(
        "nodes", "Hosts that the ranks ran on; 0 if no repetition completed.", lambda m: m.nodes
    ),
    text("dtype", "Type of an element.", lambda m: m.spec.dtype, required=True),
    integer(
        "threads_per_replica",
        "Threads of each rank.",
        lambda m: m.spec.threads_per_replica,
        required=True,
    ),
    integer(
        "repetitions",
        "Completed repetitions, each in fresh processes.",
        lambda m: m.repetitions,
        required=True,
    ),
    text("status", "completed, or how the first failed repetition ended.", lambda m: _ended(m)[0]),
    text("reason", "Why it is not simply completed.", lambda m: _ended(m)[1]),
)
SIZE_FIELDS: tuple[ReadField[SizeCost], ...] = (
    integer("nbytes", "Size of the message, as nccl-tests counts it.", lambda c: c.nbytes),
    integer("samples", "Timed samples behind it, all repetitions together.", lambda c: c.samples),
    *with_interval("seconds", "Time of one call on the slowest rank", lambda c: c.seconds),
    *with_interval(
        "algorithm_bytes_per_second", "Size ÷ time (algbw)", lambda c: c.algorithm_bandwidth
    ),
    *with_interval(
        "bus_bytes_per_second",
        "algbw × the factor of the collective (busbw of nccl-tests)",
        lambda c: c.bus_bandwidth,
    ),
    *with_interval(
        "copy_bytes_per_second",
        "Bytes copied from one tensor to another by all ranks at once ÷ time",
        lambda c: c.copy_bandwidth,
    ),
    *with_interval("share_of_copies", "algbw ÷ that of copies, a fraction", lambda c: c.copy_share),
)
COLLECTIVE_FIELDS: tuple[Field, ...] = (*SPEC_FIELDS, *SIZE_FIELDS)


def collective_rows(records: Iterable[CollectiveRecord]) -> Iterator[dict[str, Plain]]:
    """One row a message size, with the keys of COLLECTIVE_FIELDS.

    A collective of which nothing was measured has one row, without a size.
    """
    for one in measured(records):
        shared = read_row(SPEC_FIELDS, one)
        for size in one.sizes:
            yield {**shared, **read_row(SIZE_FIELDS, size)}
        if not one.sizes:
            yield {**shared, **dict.fromkeys(field.key for field in SIZE_FIELDS)}


def _ended(one: MeasuredCollective) -> tuple[str, str | None]:
    if not one.failures:
        return "completed", None
    status, reason = one.failures[0]
    return status.value, reason or None
