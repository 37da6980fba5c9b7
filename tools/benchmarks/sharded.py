"""ShardedOptimizer against torch's ways to step AdamW, on two CPU ranks at small batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer

import dpbench
from dpbench.analysis.estimate import Estimate
from dpbench.parallel import ShardedOptimizer
from tools.benchmarks.ddp import Case, training_step
from tools.benchmarks.paired import (
    Benchmark,
    Seconds,
    against_fastest,
    on_ranks,
    over_cases,
    ratio,
    take_turns,
)

CASES = (
    Case(name="mlp", batch=32, steps=8, rounds=12),
    Case(name="mnist_cnn", batch=32, steps=8, rounds=12),
    Case(name="gpt", batch=4, steps=2, rounds=12),
    Case(name="bert", batch=4, steps=1, rounds=12),
    Case(name="vit:image=32,patch=8,width=192,layers=2,classes=10", batch=64, steps=2, rounds=12),
)
OURS = {"ddp-sharded/gloo": 0.95, "ddp-sharded/shm": 1.25}
"""Our sides, and the throughput that is wanted of each, relative to torch-ddp."""
PEERS = ("torch-ddp", "ZeroRedundancyOptimizer", "fsdp2")


def run() -> Iterator[Benchmark]:
    ratios: dict[str, list[Estimate]] = {side: [] for side in OURS}
    for case in CASES:
        seconds = on_ranks(partial(measure, case), ranks=2)
        for side in OURS:
            ratios[side].append(ratio(seconds["torch-ddp"], seconds[side]))
            yield Benchmark(f"images/s of {side} ÷ torch-ddp, AdamW ({case})", ratios[side][-1])
            best, slowdown = against_fastest(seconds, side, PEERS)
            if best != "torch-ddp":
                yield Benchmark(f"step of {side} ÷ {best}, AdamW ({case})", slowdown)
    for side, limit in OURS.items():
        name = f"images/s of {side} ÷ torch-ddp, geometric mean"
        yield Benchmark(name, over_cases(ratios[side]), least=limit)


def measure(case: Case) -> Seconds:
    shm = dist.new_group(backend="shm")
    ours = partial(dpbench.DistributedDataParallel, gradient_as_bucket_view=True)
    torchs = nn.parallel.DistributedDataParallel
    sides: dict[str, tuple[Any, Callable[[Any], torch.optim.Optimizer]]] = {
        "ddp-sharded/gloo": (ours, sharded),
        "ddp-sharded/shm": (partial(ours, process_group=shm), sharded),
        "torch-ddp": (torchs, adamw),
        "ZeroRedundancyOptimizer": (torchs, zero_redundancy),
        "fsdp2": (fully_shard, adamw),
    }
    steps = {
        name: training_step(case, wrap, make_optimizer=make) for name, (wrap, make) in sides.items()
    }
    return take_turns(steps, case.steps, case.rounds)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def sharded(model: dpbench.DistributedDataParallel) -> torch.optim.Optimizer:
    return ShardedOptimizer(model, adamw(model))


def zero_redundancy(model: nn.Module) -> torch.optim.Optimizer:
    return ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-4, fused=True)
