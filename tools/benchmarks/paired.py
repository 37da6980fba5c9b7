"""Paired measurements: sides that take turns on the same ranks, and ratios with intervals.

Blocks of steps follow each other as A B C, C B A, …, in the same processes, so that whatever else
the machine does, and how lucky a process is with its memory, falls on all sides alike.
"""

from __future__ import annotations

import gc
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from time import perf_counter

import torch
import torch.distributed as dist
from scipy.special import stdtrit

from dpbench.launch.ranks import run_ranks
from dpbench.rendezvous.process_group import process_group

WARMUP_STEPS = 3
"""Buckets are rebuilt after the first step, a static graph is known after the second."""
LIMIT_SECONDS = 900

Seconds = dict[str, list[float]]
"""The seconds of each block, by side."""
Step = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Ratio:
    """The geometric mean of paired ratios with its 95 % t interval."""

    value: float
    low: float
    high: float
    pairs: int

    @classmethod
    def of(cls, numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
        logs = [math.log(a / b) for a, b in zip(numerators, denominators, strict=True)]
        half = float(stdtrit(len(logs) - 1, 0.975)) * stdev(logs) / math.sqrt(len(logs))
        center = mean(logs)
        return cls(math.exp(center), math.exp(center - half), math.exp(center + half), len(logs))

    @classmethod
    def over_cases(cls, ratios: Sequence[Ratio]) -> Ratio:
        """The geometric mean of independent ratios: their half-widths add in squares."""
        half = math.hypot(*(math.log(ratio.high / ratio.value) for ratio in ratios)) / len(ratios)
        center = mean(math.log(ratio.value) for ratio in ratios)
        pairs = sum(ratio.pairs for ratio in ratios)
        return cls(math.exp(center), math.exp(center - half), math.exp(center + half), pairs)

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f}, n = {self.pairs})"


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the output: what was measured, and what is wanted of it."""

    name: str
    value: str
    wanted: str = "reported only"
    met: bool = True

    def __str__(self) -> str:
        return f"{self.name}: {self.value}; {self.wanted}{'' if self.met else ': MISSED'}"


def at_most(limit: float, ratio: Ratio, name: str) -> Figure:
    """A figure that is missed if the whole interval lies above the limit."""
    return Figure(name, str(ratio), f"wanted ≤ {limit:g}", ratio.low <= limit)


def at_least(limit: float, ratio: Ratio, name: str) -> Figure:
    """A figure that is missed if the whole interval lies below the limit."""
    return Figure(name, str(ratio), f"wanted ≥ {limit:g}", ratio.high >= limit)


def against_fastest(seconds: Seconds, side: str, rivals: Sequence[str]) -> tuple[str, Ratio]:
    """The fastest rival, and `side` ÷ the fastest rival of the other half of the rounds.

    Chosen and judged by the same rounds, the fastest of several would be the luckiest of them.
    """

    def best(rounds: Sequence[int]) -> str:
        return min(rivals, key=lambda one: mean(math.log(seconds[one][n]) for n in rounds))

    everything = range(len(seconds[side]))
    # Pairs of rounds, one there and one back, so that the order falls on both halves alike.
    halves = [[n for n in everything if n // 2 % 2 == half] for half in (0, 1)]
    numerators, denominators = [], []
    for judged, chosen in (halves, halves[::-1]):
        rival = best(chosen)
        numerators += [seconds[side][n] for n in judged]
        denominators += [seconds[rival][n] for n in judged]
    return best(everything), Ratio.of(numerators, denominators)


def alternate(sides: Mapping[str, Callable[[], float]], rounds: int) -> Seconds:
    """Call each side once a round, there and back, and collect what they return."""
    seconds: Seconds = {name: [] for name in sides}
    for number in range(rounds):
        for name in sides if number % 2 == 0 else reversed([*sides]):
            seconds[name].append(sides[name]())
    return seconds


def take_turns(sides: Mapping[str, Step], steps: int, rounds: int) -> Seconds:
    """Time blocks of `steps` calls of each side; every rank of the default group must call it."""
    control = dist.new_group(backend="gloo")

    def block(step: Step) -> float:
        gc.collect()
        dist.barrier(control)
        start = perf_counter()
        for _ in range(steps):
            step()
        return perf_counter() - start

    gc.disable()  # a collection would fall on one side
    for step in sides.values():
        for _ in range(WARMUP_STEPS):
            step()
    return alternate({name: partial(block, step) for name, step in sides.items()}, rounds)


def on_ranks(work: Callable[[], Seconds], ranks: int) -> Seconds:
    """Run `work` on fresh ranks of a gloo group, one thread each; the slowest rank's seconds."""
    with tempfile.TemporaryDirectory(prefix="dpbench-bench-") as scratch:
        by_rank = run_ranks(partial(_in_group, work), ranks, Path(scratch), LIMIT_SECONDS)
    return {
        side: [max(blocks) for blocks in zip(*(rank[side] for rank in by_rank), strict=True)]
        for side in by_rank[0]
    }


def _in_group(work: Callable[[], Seconds], rank: int) -> Seconds:
    torch.set_num_threads(1)
    with process_group("gloo", device="cpu"):
        return work()
