"""Output of nccl-tests as it prints it, from numbers that are known."""

from __future__ import annotations

from collections.abc import Sequence

HEADER = """\
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""  # noqa: E501


def ranks(count: int, host: str = "node1") -> str:
    return "".join(
        f"#  Rank {n:2d} Group  0 Pid 41 on {host:>10} device {n:2d} [0x{n:02x}] NVIDIA A100\n"
        for n in range(count)
    )


def row(
    nbytes: int,
    microseconds: Sequence[float],
    factor: float,
    *,
    kind: str = "float     sum      -1",
    wrong: str = "0",
) -> str:
    """A line with a time for each place; times have a decimal less from 100 µs on, as there."""
    text = f"{nbytes:12d}  {nbytes // 4:12d}  {kind}"
    for time in microseconds:
        shown = f"{time:.2f}" if time < 100 else f"{time:.1f}" if time < 10_000 else f"{time:.0f}"
        algbw = nbytes / time / 1e3
        text += f"  {shown:>7} {algbw:7.2f} {algbw * factor:7.2f} {wrong:>6}"
    return f"{text}\n"


def log(*rows: str, count: int = 8, program: str | None = "all_reduce") -> str:
    """One run, as newer versions print it; older ones name no program."""
    named = "" if program is None else f"# Collective test starting: {program}_perf\n"
    ended = "" if program is None else f"# Collective test concluded: {program}_perf\n"
    return (
        f"{named}# nThread 1 nGpus {count} minBytes 8 maxBytes 1024 iters: 20\n#\n# Using devices\n"
        f"{ranks(count)}#\n{HEADER}{''.join(rows)}# Out of bounds values : 0 OK\n"
        f"# Avg bus bandwidth    : 12.3\n#\n{ended}"
    )
