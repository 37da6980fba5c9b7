"""What a wrapper costs around a forward and a backward, where there is much to wrap: our
DistributedDataParallel on gloo and shm against torch's on gloo, and both with a static graph.

`python -m tests.benchmarks.wrappers small` measures the loads that have the word in their names.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

import dpbench
from dpbench.launch.agent import run_ranks
from dpbench.rendezvous.process_group import process_group
from tests.benchmarks.figure import Figure, Ratio
from tests.benchmarks.implementations import geometric_mean
from tests.benchmarks.sides import Seconds, Step, take_turns

LIMIT_SECONDS = 600
Torchs = nn.parallel.DistributedDataParallel
TORCHS_STATIC: dict[str, Callable[[nn.Module], nn.Module]] = {
    "torch-ddp, static graph/gloo": partial(Torchs, static_graph=True),
    "torch-ddp, static graph, views/gloo": partial(
        Torchs, static_graph=True, gradient_as_bucket_view=True
    ),
    "torch-ddp, static graph, views, batched copies/gloo": partial(
        Torchs, static_graph=True, gradient_as_bucket_view=True, batched_grad_copy=True
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """A model, and what is promised of the time of ours ÷ torch's on gloo; of static graphs, ÷ the
    best of torch's."""

    name: str
    build: Callable[[], nn.Module]
    batch: Callable[[], Tensor]
    on_gloo: float
    on_shm: float
    static: float
    steps: int
    """Steps of a block."""
    rounds: int = 24


def many_small() -> nn.Module:
    return nn.Sequential(*(nn.Linear(32, 32) for _ in range(500)))


def convolutions() -> nn.Module:
    return nn.Sequential(
        *(
            nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
            for _ in range(155)
        )
    )


def few_large() -> nn.Module:
    return nn.Sequential(*(nn.Linear(512, 512) for _ in range(40)))


LOADS = (
    Load(
        name="1,000 small tensors",
        build=many_small,
        batch=lambda: torch.randn(8, 32),
        on_gloo=1.00,
        on_shm=0.92,
        static=0.95,
        steps=10,
    ),
    Load(
        name="155 convolutions with batch norm",
        build=convolutions,
        batch=lambda: torch.randn(2, 8, 8, 8),
        on_gloo=1.00,
        on_shm=0.92,
        static=1.00,
        steps=5,
    ),
    Load(
        name="80 tensors, 42 MB",
        build=few_large,
        batch=lambda: torch.randn(16, 512),
        on_gloo=1.00,
        on_shm=0.64,
        static=1.00,
        steps=4,
    ),
)


def run(words: Sequence[str] = ()) -> Iterator[Figure]:
    for number, load in enumerate(LOADS):
        if words and not any(word in load.name for word in words):
            continue
        with tempfile.TemporaryDirectory(prefix="dpbench-bench-") as scratch:
            ranks = run_ranks(partial(_sides, number), 2, Path(scratch), LIMIT_SECONDS)
        slowest = {side: list(map(max, *(rank[side] for rank in ranks))) for side in ranks[0]}
        best = min(TORCHS_STATIC, key=lambda name: geometric_mean(slowest[name]))
        for side, other, target in (
            ("ddp/gloo", "torch-ddp/gloo", load.on_gloo),
            ("ddp/shm", "torch-ddp/gloo", load.on_shm),
            ("ddp, static graph/gloo", best, load.static),
        ):
            ratio = Ratio.of(slowest[side], slowest[other])
            yield Figure(
                name=f"forward + backward of {side} ÷ {other} ({load.name})",
                value=str(ratio),
                target=f"at most {target:g}",
                met=ratio.low <= target,
            )


def _sides(number: int, rank: int) -> Seconds:
    torch.set_num_threads(1)
    load = LOADS[number]
    with process_group("gloo", device="cpu"):
        shm = dist.new_group(backend="shm")
        wrappers: dict[str, Callable[[nn.Module], nn.Module]] = {
            "ddp/shm": lambda module: dpbench.DistributedDataParallel(module, process_group=shm),
            "ddp/gloo": dpbench.DistributedDataParallel,
            "torch-ddp/gloo": Torchs,
            "ddp, static graph/gloo": partial(dpbench.DistributedDataParallel, static_graph=True),
            **TORCHS_STATIC,
        }
        sides = {name: _step(load, wrap, rank) for name, wrap in wrappers.items()}
        return take_turns(sides, load.steps, load.rounds)


def _step(load: Load, wrap: Callable[[nn.Module], nn.Module], rank: int) -> Step:
    torch.manual_seed(0)
    model = wrap(load.build())
    torch.manual_seed(1 + rank)
    batch = load.batch()

    def step() -> None:
        model.zero_grad()
        model(batch).sum().backward()

    return step


if __name__ == "__main__":
    for figure in run(sys.argv[1:]):
        print(f"{figure.name}: {figure.value}; promised {figure.target}", flush=True)
