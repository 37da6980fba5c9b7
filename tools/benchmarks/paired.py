"""Paired measurements: sides that take turns on the same ranks, and ratios with intervals.

Blocks of steps follow each other as A B C, C B A, …, in the same processes, so that whatever else
the machine does, and how lucky a process is with its memory, falls on all sides alike.
"""

from __future__ import annotations

import gc
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean
from time import perf_counter

import torch
import torch.distributed as dist

from dpbench.analysis.estimate import Estimate, geometric_mean
from dpbench.launch.ranks import run_ranks
from dpbench.rendezvous.process_group import process_group

WARMUP_STEPS = 3
"""Buckets are rebuilt after the first step, a static graph is known after the second."""
LIMIT_SECONDS = 900

Seconds = dict[str, list[float]]
"""The seconds of each block, by side."""
Step = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One line of the output: a measured ratio, and where it is wanted to lie."""

    name: str
    ratio: Estimate
    least: float = 0.0
    most: float = math.inf

    @property
    def met(self) -> bool:
        """False if the whole interval lies outside of what is wanted."""
        low, high = self.ratio.ends
        return high >= self.least and low <= self.most

    def __str__(self) -> str:
        low, high = self.ratio.ends
        shown = f"{self.ratio.value:.3f} ({low:.3f} to {high:.3f}, n = {self.ratio.sample_size})"
        limits = [f"≥ {self.least:g}"] * (self.least > 0)
        limits += [f"≤ {self.most:g}"] * (self.most < math.inf)
        wanted = f"wanted {' and '.join(limits)}" if limits else "reported only"
        return f"{self.name}: {shown}; {wanted}{'' if self.met else ': MISSED'}"


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Estimate:
    """The geometric mean of the ratios of pairs."""
    pairs = zip(numerators, denominators, strict=True)
    return geometric_mean([above / below for above, below in pairs], unit="×")


def over_cases(ratios: Sequence[Estimate]) -> Estimate:
    """The geometric mean of independent ratios: their half-widths add in squares."""
    half = math.hypot(*(math.log(one.ends[1] / one.value) for one in ratios)) / len(ratios)
    center = geometric_mean([one.value for one in ratios], unit="×")
    low, high = center.value * math.exp(-half), center.value * math.exp(half)
    return replace(center, low=low, high=high, sample_size=sum(r.sample_size for r in ratios))


def against_fastest(seconds: Seconds, side: str, rivals: Sequence[str]) -> tuple[str, Estimate]:
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
    return best(everything), ratio(numerators, denominators)


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
