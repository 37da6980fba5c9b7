"""Our implementations against torch's and against what the machine allows.

`python -m tests.benchmarks.implementations mlp resnet` measures these architectures only.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean

from dpbench.launch.agent import run_ranks
from dpbench.specs import TrialSpec
from tests.benchmarks.figure import Figure, Ratio, alternating
from tests.benchmarks.sides import Load, Seconds, one_process, two_ranks
from tests.benchmarks.trials import Bench, bench
from tests.builders import WORKLOAD, trial_spec

LOADS = tuple(
    Load(architecture=architecture, batch=batch, steps=steps, rounds=rounds)
    for architecture, batch, steps, rounds in (
        ("mnist_cnn", 32, 10, 20),
        ("mnist_cnn", 64, 5, 20),
        ("mnist_cnn", 128, 3, 20),
        ("mlp", 32, 10, 20),
        ("mlp", 128, 6, 20),
        ("gpt", 32, 1, 12),
        ("gpt", 128, 1, 6),
        ("resnet", 32, 1, 10),
        ("resnet", 128, 1, 4),
    )
)
"""About 15 minutes together; a block of steps lasts some tenths of a second, or one step."""
SHM_OVER_TORCH = {"mlp, batch 32": 1.7}
SHARE_OF_INDEPENDENT = {"mnist_cnn, batch 128": 0.9, "resnet, batch 128": 0.9}
SPEEDUP_OF_THREADS = {"mlp, batch 32": 1.3, "mnist_cnn, batch 64": 1.6}
TORCHS = ("torch-ddp/gloo", "torch-ddp-static/gloo")
LIMIT_SECONDS = 600
MEMORY_PAIRS = 3


def run(architectures: Sequence[str] = ()) -> Iterator[Figure]:
    loads = [load for load in LOADS if not architectures or load.architecture in architectures]
    on_gloo, on_shm, bounds = [], [], []
    for load in loads:
        seconds = block_seconds(two_ranks, load, ranks=2)
        best = min(TORCHS, key=lambda name: geometric_mean(seconds[name]))
        on_gloo.append(Ratio.of(seconds[best], seconds["ddp/gloo"]))
        on_shm.append(Ratio.of(seconds[best], seconds["ddp/shm"]))
        share = Ratio.of(seconds["independent"], seconds["ddp/shm"])
        yield at_least(1.0, on_gloo[-1], f"images/s of ddp/gloo ÷ {best} ({load})")
        target = SHM_OVER_TORCH.get(str(load))
        yield at_least(target, on_shm[-1], f"images/s of ddp/shm ÷ {best} ({load})")
        target = SHARE_OF_INDEPENDENT.get(str(load))
        yield at_least(target, share, f"images/s of ddp/shm ÷ independent ({load})")
        bound = Ratio.of(seconds[best], seconds["independent"])
        bounds.append(bound)
        yield at_least(None, bound, f"images/s of independent ÷ {best}, the bound ({load})")
        if load.batch == 32 or str(load) in SPEEDUP_OF_THREADS:
            yield from _one_process(load)
    yield at_least(
        1.05, overall(on_gloo), "images/s of ddp/gloo ÷ torch's best on gloo, geometric mean"
    )
    yield at_least(
        1.3, overall(on_shm), "images/s of ddp/shm ÷ torch's best on gloo, geometric mean"
    )
    yield at_least(
        None, overall(bounds), "images/s of independent ÷ torch's best on gloo, geometric mean"
    )
    yield from _memory(dict.fromkeys(load.architecture for load in loads))


def _one_process(load: Load) -> Iterator[Figure]:
    seconds = block_seconds(one_process, load, ranks=1)
    per_batch = [both / 2 for both in seconds["dp ×2"]]  # a step of two replicas takes two batches
    target = SPEEDUP_OF_THREADS.get(str(load))
    speedup = Ratio.of(seconds["single"], per_batch)
    yield at_least(target, speedup, f"images/s of dp ×2 ÷ single ({load})")
    overhead = Ratio.of(seconds["ddp ×1"], seconds["single"])
    yield _at_most(1.02, overhead, f"step time of ddp ×1 ÷ single ({load})")


def _memory(architectures: Iterable[str]) -> Iterator[Figure]:
    """In processes of their own, as a peak is that of a whole process."""
    with bench() as machine:
        for architecture in architectures:
            workload = replace(WORKLOAD, architecture=architecture, dataset="synthetic")
            trial = trial_spec(workload=workload, batch_size=32, warmup_steps=3, timed_steps=3)
            torchs = replace(trial, implementation="torch-ddp-static")
            peaks = alternating(
                partial(_peak_bytes, machine, trial),
                partial(_peak_bytes, machine, torchs),
                MEMORY_PAIRS,
            )
            name = f"peak memory per rank of ddp ÷ torch-ddp-static ({architecture}, batch 32)"
            yield _at_most(1.02, Ratio.of(*peaks), name)


def _peak_bytes(machine: Bench, trial: TrialSpec) -> float:
    return max(rank.peak_host_memory_bytes or 0 for rank in machine.run(trial).ranks)


def block_seconds(work: Callable[[Load, int], Seconds], load: Load, *, ranks: int) -> Seconds:
    """By side, the seconds of each block on the slowest rank."""
    with tempfile.TemporaryDirectory(prefix="dpbench-bench-") as scratch:
        by_rank = run_ranks(partial(work, load), ranks, Path(scratch), LIMIT_SECONDS)
    return {
        side: [max(blocks) for blocks in zip(*(rank[side] for rank in by_rank), strict=True)]
        for side in by_rank[0]
    }


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(mean(map(math.log, values)))


def overall(ratios: Sequence[Ratio]) -> Ratio:
    """The geometric mean over loads; their intervals, which are independent, add in squares."""
    halves = [math.log(ratio.high / ratio.value) for ratio in ratios]
    half = math.hypot(*halves) / len(ratios)
    center = math.log(geometric_mean([ratio.value for ratio in ratios]))
    pairs = sum(ratio.pairs for ratio in ratios)
    return Ratio(math.exp(center), math.exp(center - half), math.exp(center + half), pairs)


def at_least(target: float | None, ratio: Ratio, name: str) -> Figure:
    """Met unless the whole interval lies below; nothing is promised for None."""
    words = "nothing" if target is None else f"at least {target:g}"
    met = target is None or ratio.high >= target
    return Figure(name=name, value=str(ratio), target=words, met=met)


def _at_most(target: float, ratio: Ratio, name: str) -> Figure:
    """Met unless the whole interval lies above."""
    met = ratio.low <= target
    return Figure(name=name, value=str(ratio), target=f"at most {target:g}", met=met)


if __name__ == "__main__":
    for figure in run(sys.argv[1:]):
        print(f"{figure.name}: {figure.value}; promised {figure.target}", flush=True)
