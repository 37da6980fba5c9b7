"""The largest batch of a replica that fits into memory: found by trying, or predicted from small
ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

FIRST = 2
"""First batch to try: a batch norm cannot train on one sample."""
GROWTH = 4
"""Factor between two small batches whose memory is compared."""
RESOLUTION = 16
"""Bisection ends when the interval is 1/16 of the batch that fits."""
CLEAR_BYTES = 256 * 2**20
"""Least difference in memory of two compared batches: far more than equal runs differ by."""
NOISE_BYTES = 16 * 2**20
"""Smallest growth that is assumed, so that noise predicts no batch that is too large."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Peak:
    """The memory that one batch took."""

    batch_size: int
    peak_bytes: int


def by_trying(fits: Callable[[int], bool], most: int, is_over: Callable[[], bool]) -> int | None:
    """Double until a batch does not fit, then bisect; None if not even the first fits.

    The result is at most `most`. Once `is_over`, it is the largest that fitted so far.
    """
    if not fits(first := min(FIRST, most)):
        return None
    low, high = first, most + 1
    while low < most and not is_over():
        doubling = 2 * low < high and high == most + 1
        if not doubling and high - low <= max(1, low // RESOLUTION):
            break
        middle = 2 * low if doubling else (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def by_predicting(
    measure: Callable[[int], int], budget_bytes: float, most: int, is_over: Callable[[], bool]
) -> int | None:
    """Measure the peak memory of ever larger batches until it grows clearly, then extrapolate
    linearly.

    `measure` returns the bytes of a batch; a batch is not measured if the ones before predict that
    it exceeds the budget. None if not even the first fits.
    """
    last = _peak(measure, min(FIRST, most))
    if last.peak_bytes > budget_bytes:
        return None
    slope: float = NOISE_BYTES
    while last.batch_size < most and not is_over():
        following = min(GROWTH * last.batch_size, most)
        if _predicted(last, slope, following) > budget_bytes:
            break
        before, last = last, _peak(measure, following)
        growth = last.peak_bytes - before.peak_bytes
        slope = max(growth, NOISE_BYTES) / (last.batch_size - before.batch_size)
        if growth >= CLEAR_BYTES:
            break
    if last.peak_bytes > budget_bytes:
        return None
    return min(most, last.batch_size + int((budget_bytes - last.peak_bytes) / slope))


def within_time(batch_size: int, step_seconds: Mapping[int, float], longest_seconds: float) -> int:
    """The batch, or the one whose step takes `longest_seconds`: extrapolated from the largest
    measured batch with constant time per sample. 0 if not even one sample is allowed."""
    measured, seconds = max(step_seconds.items())
    return min(batch_size, int(measured * longest_seconds / seconds))


def available_memory_bytes(root: Path = Path("/")) -> int | None:
    """Memory that this process may still take without swapping, within its control group's limit;
    None if the system does not report it, as outside of Linux."""
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    if "MemAvailable" not in fields:
        return None
    available = int(fields["MemAvailable"].split()[0]) * 1024
    group = root / "sys/fs/cgroup"
    try:
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
    except (OSError, ValueError):  # no such group, or "max": no limit
        return available
    return max(0, min(available, limit - used))


def _peak(measure: Callable[[int], int], batch_size: int) -> Peak:
    return Peak(batch_size=batch_size, peak_bytes=measure(batch_size))


def _predicted(last: Peak, slope: float, batch_size: int) -> float:
    return last.peak_bytes + slope * (batch_size - last.batch_size)
