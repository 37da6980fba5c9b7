"""The benchmarks: dpbench's wrappers, its sharded optimizer and its backend against torch's.

Each yields one `Benchmark` for each figure. All run on CPU ranks with a thread each; a case trains
a model that ships, or one made here, with forward and backward only.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from inspect import signature
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer

import dpbench
from dpbench import architecture
from dpbench.analysis.estimate import Estimate
from dpbench.data.datasets import synthetic_dataset
from dpbench.folders import load_sweep
from dpbench.measure.implementations import Plain
from dpbench.measure.rank_model import RankModel
from dpbench.measure.step import BenchmarkStepper
from dpbench.parallel import ShardedOptimizer
from dpbench.parallel.shm import allocate_group_zeros
from tools.benchmarks.paired import (
    Benchmark,
    Seconds,
    Step,
    against_fastest,
    alternate,
    on_ranks,
    over_cases,
    ratio,
    take_turns,
)

TorchDDP = nn.parallel.DistributedDataParallel
BATCHED = {"batched_grad_copy": True}
STATIC = {"gradient_as_bucket_view": True, "static_graph": True}
TORCH: dict[str, dict[str, Any]] = {
    "torch-ddp": {},
    "torch-ddp, views": {"gradient_as_bucket_view": True},
    "torch-ddp, views, static": STATIC,
}
if BATCHED.keys() <= signature(TorchDDP).parameters.keys():  # torch 2.13
    TORCH["torch-ddp, batched copy"] = BATCHED
    TORCH["torch-ddp, views, static, batched copy"] = STATIC | BATCHED
SHARDED_PEERS = ("torch-ddp", "ZeroRedundancyOptimizer", "fsdp2")
OWN_DDP = partial(dpbench.DistributedDataParallel, gradient_as_bucket_view=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A model of the tree by name and batch, or a `build` with the shape of its batch."""

    name: str
    batch: int
    steps: int
    """Steps of a block."""
    rounds: int
    build: Callable[[], nn.Module] | None = None
    shape: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}, batch {self.batch}"


def many_small() -> nn.Module:
    return nn.Sequential(*(nn.Linear(32, 32) for _ in range(500)))


def convolutions() -> nn.Module:
    blocks = ((nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()) for _ in range(155))
    return nn.Sequential(*(nn.Sequential(*block) for block in blocks))


def few_large() -> nn.Module:
    return nn.Sequential(*(nn.Linear(512, 512) for _ in range(40)))


DDP_CASES = (
    Case(name="mnist_cnn", batch=32, steps=10, rounds=20),
    Case(name="mnist_cnn", batch=64, steps=5, rounds=20),
    Case(name="mnist_cnn", batch=128, steps=3, rounds=20),
    Case(name="mlp", batch=32, steps=10, rounds=20),
    Case(name="mlp", batch=128, steps=6, rounds=20),
    Case(name="gpt", batch=32, steps=1, rounds=12),
    Case(name="resnet", batch=32, steps=1, rounds=10),
    Case(name="1,000 tensors", batch=8, steps=10, rounds=24, build=many_small, shape=(32,)),
    Case(name="155 conv + BN", batch=2, steps=5, rounds=24, build=convolutions, shape=(8, 8, 8)),
    Case(name="80 tensors, 42 MB", batch=16, steps=4, rounds=24, build=few_large, shape=(512,)),
)
DP_CASES = (
    (Case(name="mnist_cnn", batch=64, steps=5, rounds=16), 1.6),
    (Case(name="mlp", batch=32, steps=10, rounds=16), 0.0),
)
"""What is trained, and the speedup that is wanted, 0 for any."""
SHARDED_CASES = (
    Case(name="mlp", batch=32, steps=8, rounds=12),
    Case(name="mnist_cnn", batch=32, steps=8, rounds=12),
    Case(name="gpt", batch=4, steps=2, rounds=12),
    Case(name="bert", batch=4, steps=1, rounds=12),
    Case(name="vit:image=32,patch=8,width=192,layers=2,classes=10", batch=64, steps=2, rounds=12),
)


def ddp() -> Iterator[Benchmark]:
    """our DistributedDataParallel against the fastest form of torch's, on gloo and shm"""
    ratios: dict[str, list[Estimate]] = {"ddp/gloo": [], "ddp/shm": []}
    for case in DDP_CASES:
        seconds = on_ranks(partial(ddp_seconds, case), ranks=2)
        for side, found in ratios.items():
            best, slowdown = against_fastest(seconds, side, [*TORCH])
            found.append(slowdown)
            limit = 1.08 if side == "ddp/gloo" else math.inf
            yield Benchmark(f"step of {side} ÷ {best} ({case})", slowdown, most=limit)
        default = ratio(seconds["ddp/shm"], seconds["torch-ddp"])
        yield Benchmark(f"step of ddp/shm ÷ torch-ddp as it comes ({case})", default)
    for side, limit in (("ddp/gloo", 1.02), ("ddp/shm", 0.92)):
        name = f"step of {side} ÷ fastest torch-ddp, geometric mean"
        yield Benchmark(name, over_cases(ratios[side]), most=limit)


def ddp_seconds(case: Case) -> Seconds:
    wrappers: dict[str, Callable[[nn.Module], nn.Module]] = {
        "ddp/gloo": OWN_DDP,
        "ddp/shm": partial(OWN_DDP, process_group=dist.new_group(backend="shm")),
        **{name: partial(TorchDDP, **options) for name, options in TORCH.items()},
    }
    sides = {name: training_step(case, wrap) for name, wrap in wrappers.items()}
    return take_turns(sides, case.steps, case.rounds)


def dp() -> Iterator[Benchmark]:
    """DataParallel with two replicas against the plain module"""
    for case, wanted in DP_CASES:
        seconds = on_ranks(partial(dp_seconds, case), ranks=1)
        halves = [block / 2 for block in seconds["dp ×2"]]  # a step takes two batches
        found = ratio(seconds["single"], halves)
        yield Benchmark(f"images/s of dp ×2 ÷ single ({case})", found, least=wanted)


def dp_seconds(case: Case) -> Seconds:
    replicate = partial(dpbench.DataParallel, device_ids=["cpu", "cpu"])
    of_two = training_step(case, replicate, replicas=2)

    def with_two_threads() -> None:
        torch.set_num_threads(2)  # for the optimizer, as the caller of dp has them by default
        of_two()
        torch.set_num_threads(1)

    sides = {"single": training_step(case, lambda module: module), "dp ×2": with_two_threads}
    return take_turns(sides, case.steps, case.rounds)


def sharded() -> Iterator[Benchmark]:
    """ShardedOptimizer against torch's ways to make an AdamW step, at small batches"""
    wanted = {"ddp-sharded/gloo": 0.95, "ddp-sharded/shm": 1.25}
    ratios: dict[str, list[Estimate]] = {side: [] for side in wanted}
    for case in SHARDED_CASES:
        seconds = on_ranks(partial(sharded_seconds, case), ranks=2)
        for side, found in ratios.items():
            found.append(ratio(seconds["torch-ddp"], seconds[side]))
            yield Benchmark(f"images/s of {side} ÷ torch-ddp, AdamW ({case})", found[-1])
            best, slowdown = against_fastest(seconds, side, SHARDED_PEERS)
            if best != "torch-ddp":
                yield Benchmark(f"step of {side} ÷ {best}, AdamW ({case})", slowdown)
    for side, least in wanted.items():
        name = f"images/s of {side} ÷ torch-ddp, geometric mean"
        yield Benchmark(name, over_cases(ratios[side]), least=least)


def sharded_seconds(case: Case) -> Seconds:
    on_shm = partial(OWN_DDP, process_group=dist.new_group(backend="shm"))
    sides: dict[str, tuple[Any, Callable[[Any], torch.optim.Optimizer]]] = {
        "ddp-sharded/gloo": (OWN_DDP, lambda model: ShardedOptimizer(model, adamw(model))),
        "ddp-sharded/shm": (on_shm, lambda model: ShardedOptimizer(model, adamw(model))),
        "torch-ddp": (TorchDDP, adamw),
        "ZeroRedundancyOptimizer": (TorchDDP, zero_redundancy),
        "fsdp2": (fully_shard, adamw),
    }
    steps = {
        name: training_step(case, wrap, make_optimizer=make) for name, (wrap, make) in sides.items()
    }
    return take_turns(steps, case.steps, case.rounds)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def zero_redundancy(model: nn.Module) -> torch.optim.Optimizer:
    return ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-4, fused=True)


def training_step(
    case: Case,
    wrap: Callable[[nn.Module], nn.Module],
    replicas: int = 1,
    make_optimizer: Callable[[nn.Module], torch.optim.Optimizer] = sgd,
) -> Step:
    """A step on this rank's batch, the same at every step; without an optimizer if `case` has a
    model of its own."""
    torch.manual_seed(0)
    if case.build is not None:
        model = wrap(case.build())
        torch.manual_seed(1 + dist.get_rank())
        batch = torch.randn(case.batch, *case.shape)

        def step() -> None:
            model.zero_grad()
            model(batch).sum().backward()

        return step
    loaded = architecture.load_architecture(case.name)
    samples = case.batch * replicas
    data = synthetic_dataset(loaded, seed=dist.get_rank(), samples=samples)
    module = wrap(loaded.build_model())
    rank_model = RankModel(
        module=module, parallel=Plain(module), optimizer=make_optimizer(module), loss=loaded.loss
    )
    stepper = BenchmarkStepper(rank_model, data.select)
    indices = [torch.arange(samples)]
    return lambda: stepper.step(indices)


def shm() -> Iterator[Benchmark]:
    """all-reduce of two ranks on shm against gloo over loopback"""
    for nbytes, calls, wanted in ((4_000, 100, 12.0), (25_000_000, 1, 3.5), (100_000_000, 1, 1.0)):
        seconds = on_ranks(partial(all_reduce_seconds, nbytes, calls), ranks=2)
        size = f"{nbytes // 10**6} MB" if nbytes >= 10**6 else f"{nbytes // 1000} KB"
        name = f"all-reduce of {size}, gloo ÷ shm"
        yield Benchmark(name, ratio(seconds["gloo"], seconds["shm"]), least=wanted)
        if size != "4 KB":
            anywhere = ratio(seconds["gloo"], seconds["shm, anywhere"])
            yield Benchmark(f"{name}, tensors outside the group's memory", anywhere)
            copy = ratio(seconds["copy"], seconds["shm"])
            yield Benchmark(f"copy of {size} ÷ all-reduce on shm", copy)


def all_reduce_seconds(nbytes: int, calls: int) -> Seconds:
    group = dist.new_group(backend="shm")
    inside = allocate_group_zeros(group, nbytes // 4, torch.float32, torch.device("cpu"))
    outside, copy = torch.zeros(nbytes // 4), torch.zeros(nbytes // 4)
    sides: dict[str, Callable[[], object]] = {
        "gloo": lambda: dist.all_reduce(outside),
        "shm": lambda: dist.all_reduce(inside, group=group),
        "shm, anywhere": lambda: dist.all_reduce(outside, group=group),
        "copy": lambda: copy.copy_(outside),
    }
    return take_turns(sides, calls, rounds=20)


def disturbance() -> Iterator[Benchmark]:
    """does a sweep measure what a user gets? CPU per step of a training script ÷ of a trial"""
    model, batch, ranks = "mnist_cnn", 64, 2
    script = Path(__file__).parents[1] / "training_script.py"
    trial = {"arch": model, "data": "synthetic", "implementations": ["torch-ddp"]}
    own = {"script": str(script), "arguments": ["--model", model, "--batch", str(batch)]}

    def cpu_seconds(folder: Path, **options: Any) -> float:
        """Processor seconds of a step of a rank, in a sweep with one trial of several ranks."""
        shape: dict[str, Any] = {"gpus": ranks, "group_sizes": [ranks], "repetitions": 1}
        steps: dict[str, Any] = {"warmup": [10], "steps": [60], "threads": [1]}
        results = dpbench.sweep(results_dir=folder, **shape, **steps, **options)
        assert results is not None, "no launcher has started this process"
        found = load_sweep(results.folder)
        [record] = [one for one in found.records if one.configuration.group_size == ranks]
        windows = [rank.timed for rank in record.ranks]
        return fmean((window.cpu_seconds or 0.0) / len(window.step_seconds) for window in windows)

    with tempfile.TemporaryDirectory(prefix="dpbench-bench-") as name:
        sides = {
            "trial": partial(cpu_seconds, Path(name, "trial"), **trial, batch_sizes=[batch]),
            "script": partial(cpu_seconds, Path(name, "script"), **own, implementations=["script"]),
        }
        taken = alternate(sides, rounds=12)
    yield Benchmark(
        name=f"CPU per step, script ÷ trial (torch-ddp on gloo ×{ranks}, {model}, batch {batch}; "
        f"{fmean(taken['trial']) * 1e3:.1f} ms in the trial)",
        ratio=ratio(taken["script"], taken["trial"]),
        least=0.97,
        most=1.03,
    )
