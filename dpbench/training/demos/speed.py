"""What replicas do for the speed of so small a model: measured, and promised to nobody."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dpbench.training.demos import regression
from dpbench.training.settings import Mode

STEPS = 200
MODES: tuple[Mode, ...] = ("sequential", "processes")


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """Of one number of replicas in one mode."""

    mode: Mode
    replicas: int
    samples_per_second: float | None
    """Without the start; None where that varied more than the steps took."""
    start_seconds: float
    """Until the first step is done."""


def speeds(devices: Sequence[Sequence[str]], steps: int = STEPS) -> Iterator[Speed]:
    """For each list of devices, one replica on each, in each mode."""
    for mode in MODES:
        # The first processes of a program wait for the server that they are forked from.
        regression.train(devices[0], iterations=1, mode=mode)
        for one in devices:
            yield _speed(one, mode, steps)


def _speed(devices: Sequence[str], mode: Mode, steps: int) -> Speed:
    start = regression.train(devices, iterations=1, mode=mode).elapsed_seconds
    whole = regression.train(devices, iterations=steps + 1, mode=mode).elapsed_seconds
    samples = steps * len(devices)
    return Speed(
        mode=mode,
        replicas=len(devices),
        samples_per_second=samples / (whole - start) if whole > start else None,
        start_seconds=start,
    )
