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
from tools.benchmarks.ddp import Case, training_step
from tools.benchmarks.paired import Figure, Ratio, Seconds, fastest, on_ranks, take_turns

CASES = (
    Case(name="mlp", batch=32, steps=8, rounds=12),
    Case(name="mnist_cnn", batch=32, steps=8, rounds=12),
    Case(name="gpt", batch=4, steps=2, rounds=12),
    Case(name="bert", batch=4, steps=1, rounds=12),
    Case(name="tabular", batch=32, steps=2, rounds=12),
)
OURS = ("ddp-sharded/gloo", "ddp-sharded/shm")


def run(cases: str = "") -> Iterator[Figure]:
    over_best: dict[str, list[Ratio]] = {side: [] for side in OURS}
    for case in CASES:
        if cases not in str(case):
            continue
        seconds = on_ranks(partial(measure, case), ranks=2)
        best = fastest(seconds, [side for side in seconds if side not in OURS])
        for side in OURS:
            over_best[side].append(Ratio.of(seconds[best], seconds[side]))
            yield Figure(f"images/s of {side} ÷ {best}, AdamW ({case})", str(over_best[side][-1]))
    for side, ratios in over_best.items():
        if ratios:
            mean = str(Ratio.over_cases(ratios))
            yield Figure(f"images/s of {side} ÷ best peer on gloo, geometric mean", mean)


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


def sharded(model: nn.parallel.DistributedDataParallel) -> torch.optim.Optimizer:
    optimizer: torch.optim.Optimizer = dpbench.ShardedOptimizer(model, adamw(model))
    return optimizer


def zero_redundancy(model: nn.Module) -> torch.optim.Optimizer:
    return ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-4, fused=True)
