"""ShardedOptimizer against torch's ways to step AdamW, on two CPU ranks at small batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer

import dpbench
from dpbench import architecture
from dpbench.data import datasets
from dpbench.measure.implementations import Plain
from dpbench.measure.step import Trainer
from tools.benchmarks.ddp import Case
from tools.benchmarks.paired import Figure, Ratio, Seconds, Step, fastest, on_ranks, take_turns

CASES = (
    Case(name="mlp", batch=32, steps=8, rounds=12),
    Case(name="mnist_cnn", batch=32, steps=8, rounds=12),
    Case(name="gpt", batch=4, steps=2, rounds=12),
    Case(name="bert", batch=4, steps=1, rounds=12),
    Case(name="tabular", batch=32, steps=2, rounds=12),
)
OURS = ("ddp-sharded/gloo", "ddp-sharded/shm")
Trained = tuple[nn.Module, torch.optim.Optimizer]
TorchDDP = nn.parallel.DistributedDataParallel


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
    makes: dict[str, Callable[[nn.Module], Trained]] = {
        "ddp-sharded/gloo": sharded,
        "ddp-sharded/shm": partial(sharded, group=shm),
        "torch-ddp": lambda module: (TorchDDP(module), adamw(module)),
        "ZeroRedundancyOptimizer": zero_redundancy,
        "fsdp2": fsdp2,
    }
    sides = {name: training_step(case, make) for name, make in makes.items()}
    return take_turns(sides, case.steps, case.rounds)


def adamw(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True)


def sharded(module: nn.Module, group: dist.ProcessGroup | None = None) -> Trained:
    model = dpbench.DistributedDataParallel(
        module, process_group=group, gradient_as_bucket_view=True
    )
    return model, dpbench.ShardedOptimizer(model, adamw(module))


def zero_redundancy(module: nn.Module) -> Trained:
    optimizer = ZeroRedundancyOptimizer(module.parameters(), torch.optim.AdamW, lr=1e-4, fused=True)
    return TorchDDP(module), optimizer


def fsdp2(module: nn.Module) -> Trained:
    fully_shard(module)
    return module, adamw(module)


def training_step(case: Case, make: Callable[[nn.Module], Trained]) -> Step:
    """A step on this rank's batch, the same at every step."""
    loaded = architecture.load(case.name)
    data = datasets.load_dataset(
        "synthetic", None, loaded, seed=dist.get_rank(), samples=case.batch
    )
    torch.manual_seed(0)
    model, optimizer = make(loaded.build_model())
    trainer = Trainer(Plain(model), optimizer, loaded.loss, data.select, accumulation_steps=1)
    indices = [torch.arange(case.batch)]
    return lambda: trainer.step(indices)
