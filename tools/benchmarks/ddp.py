"""Our DistributedDataParallel against the fastest form of torch's, on two CPU ranks.

The denominator of every ratio is the fastest of torch's forms on gloo. Models that ship are trained
with SGD; the last three cases are many, deep and large tensors with forward and backward only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import dpbench
from dpbench import architecture
from dpbench.analysis.estimate import Estimate
from dpbench.data.datasets import synthetic_dataset
from dpbench.measure.implementations import Plain
from dpbench.measure.rank_model import RankModel
from dpbench.measure.step import BenchmarkStepper
from tools.benchmarks.paired import (
    Benchmark,
    Seconds,
    Step,
    against_fastest,
    on_ranks,
    over_cases,
    ratio,
    take_turns,
)

VIEWS = {"gradient_as_bucket_view": True}
TORCH: dict[str, dict[str, Any]] = {
    "torch-ddp": {},
    "torch-ddp, views": VIEWS,
    "torch-ddp, views, static": VIEWS | {"static_graph": True},
}
if "batched_grad_copy" in signature(nn.parallel.DistributedDataParallel).parameters:  # torch 2.13
    TORCH["torch-ddp, batched copy"] = {"batched_grad_copy": True}
    TORCH["torch-ddp, views, static, batched copy"] = {
        **VIEWS,
        "static_graph": True,
        "batched_grad_copy": True,
    }
MEAN_ON_GLOO, CASE_ON_GLOO, MEAN_ON_SHM = 1.02, 1.08, 0.92


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


CASES = (
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


def run() -> Iterator[Benchmark]:
    ratios: dict[str, list[Estimate]] = {"ddp/gloo": [], "ddp/shm": []}
    for case in CASES:
        seconds = on_ranks(partial(measure, case), ranks=2)
        for side, found in ratios.items():
            best, slowdown = against_fastest(seconds, side, [*TORCH])
            found.append(slowdown)
            limit = CASE_ON_GLOO if side == "ddp/gloo" else math.inf
            yield Benchmark(f"step of {side} ÷ {best} ({case})", slowdown, most=limit)
        default = ratio(seconds["ddp/shm"], seconds["torch-ddp"])
        yield Benchmark(f"step of ddp/shm ÷ torch-ddp as it comes ({case})", default)
    for side, limit in (("ddp/gloo", MEAN_ON_GLOO), ("ddp/shm", MEAN_ON_SHM)):
        name = f"step of {side} ÷ fastest torch-ddp, geometric mean"
        yield Benchmark(name, over_cases(ratios[side]), most=limit)


def measure(case: Case) -> Seconds:
    ours = partial(dpbench.DistributedDataParallel, gradient_as_bucket_view=True)
    shm = dist.new_group(backend="shm")
    wrappers: dict[str, Callable[[nn.Module], nn.Module]] = {
        "ddp/gloo": ours,
        "ddp/shm": partial(ours, process_group=shm),
    }
    for name, options in TORCH.items():
        wrappers[name] = partial(nn.parallel.DistributedDataParallel, **options)
    sides = {name: training_step(case, wrap) for name, wrap in wrappers.items()}
    return take_turns(sides, case.steps, case.rounds)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3)


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
