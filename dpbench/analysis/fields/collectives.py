"""The fields of a measured collective, and of each message size of it."""

from __future__ import annotations

from dpbench.analysis.communication.timings import MeasuredCollective, SizeCost
from dpbench.analysis.fields.field import ReadField, flat


def _ended(one: MeasuredCollective) -> tuple[str, str | None]:
    if not one.failures:
        return "completed", None
    status, reason = one.failures[0]
    return status.value, reason or None


SPEC_FIELDS: tuple[ReadField[MeasuredCollective], ...] = (
    ReadField(
        key="collective",
        kind="text",
        meaning="Operation that the ranks perform together.",
        read=lambda m: m.spec.collective,
        required=True,
    ),
    ReadField(
        key="backend",
        kind="text",
        meaning="How the bytes travel.",
        read=lambda m: m.spec.backend,
        required=True,
    ),
    ReadField(
        key="group_size",
        kind="integer",
        meaning="Ranks that take part.",
        read=lambda m: m.spec.group_size,
        required=True,
    ),
    ReadField(
        key="nodes",
        kind="integer",
        meaning="Hosts that the ranks ran on; 0 if no repetition completed.",
        read=lambda m: m.nodes,
    ),
    ReadField(
        key="dtype",
        kind="text",
        meaning="Type of an element.",
        read=lambda m: m.spec.dtype,
        required=True,
    ),
    ReadField(
        key="threads_per_replica",
        kind="integer",
        meaning="Threads of each rank.",
        read=lambda m: m.spec.threads_per_replica,
        required=True,
    ),
    ReadField(
        key="repetitions",
        kind="integer",
        meaning="Completed repetitions, each in fresh processes.",
        read=lambda m: m.repetitions,
        required=True,
    ),
    ReadField(
        key="status",
        kind="text",
        meaning="completed, or how the first failed repetition ended.",
        read=lambda m: _ended(m)[0],
    ),
    ReadField(
        key="reason",
        kind="text",
        meaning="Why it is not simply completed.",
        read=lambda m: _ended(m)[1],
    ),
)
SIZE_FIELDS: tuple[ReadField[SizeCost], ...] = tuple(
    flat(
        (
            ReadField(
                key="nbytes",
                kind="integer",
                meaning="Size of the message, as nccl-tests counts it.",
                read=lambda c: c.nbytes,
            ),
            ReadField(
                key="samples",
                kind="integer",
                meaning="Timed samples behind it, all repetitions together.",
                read=lambda c: c.samples,
            ),
            ReadField(
                key="seconds",
                meaning="Time of one call on the slowest rank.",
                ends=True,
                read=lambda c: c.seconds,
            ),
            ReadField(
                key="algorithm_bytes_per_second",
                meaning="Size ÷ time (algbw).",
                ends=True,
                read=lambda c: c.algorithm_bandwidth,
            ),
            ReadField(
                key="bus_bytes_per_second",
                meaning="algbw × the factor of the collective (busbw of nccl-tests).",
                ends=True,
                read=lambda c: c.bus_bandwidth,
            ),
            ReadField(
                key="copy_bytes_per_second",
                meaning="Bytes copied from one tensor to another by all ranks at once ÷ time.",
                ends=True,
                read=lambda c: c.copy_bandwidth,
            ),
            ReadField(
                key="share_of_copies",
                meaning="algbw ÷ that of copies, a fraction.",
                ends=True,
                read=lambda c: c.copy_share,
            ),
        )
    )
)
