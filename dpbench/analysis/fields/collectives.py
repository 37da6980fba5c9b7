"""The fields of a measured collective, and of each message size of it."""

from __future__ import annotations

from dpbench.analysis.communication.timings import MeasuredCollective, SizeCost
from dpbench.analysis.fields.field import ReadField, flat, integer, number, text


def _ended(one: MeasuredCollective) -> tuple[str, str | None]:
    if not one.failures:
        return "completed", None
    status, reason = one.failures[0]
    return status.value, reason or None


SPEC_FIELDS: tuple[ReadField[MeasuredCollective], ...] = (
    text(
        "collective",
        "Operation that the ranks perform together.",
        lambda m: m.spec.collective,
        required=True,
    ),
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
SIZE_FIELDS: tuple[ReadField[SizeCost], ...] = tuple(
    flat(
        (
            integer("nbytes", "Size of the message, as nccl-tests counts it.", lambda c: c.nbytes),
            integer(
                "samples", "Timed samples behind it, all repetitions together.", lambda c: c.samples
            ),
            number(
                "seconds", "Time of one call on the slowest rank.", lambda c: c.seconds, ends=True
            ),
            number(
                "algorithm_bytes_per_second",
                "Size ÷ time (algbw).",
                lambda c: c.algorithm_bandwidth,
                ends=True,
            ),
            number(
                "bus_bytes_per_second",
                "algbw × the factor of the collective (busbw of nccl-tests).",
                lambda c: c.bus_bandwidth,
                ends=True,
            ),
            number(
                "copy_bytes_per_second",
                "Bytes copied from one tensor to another by all ranks at once ÷ time.",
                lambda c: c.copy_bandwidth,
                ends=True,
            ),
            number(
                "share_of_copies",
                "algbw ÷ that of copies, a fraction.",
                lambda c: c.copy_share,
                ends=True,
            ),
            number(
                "largest_error",
                "Largest error of a result on values that have to be rounded, over all ranks, "
                "relative to exact arithmetic.",
                lambda c: c.largest_error,
            ),
        )
    )
)
