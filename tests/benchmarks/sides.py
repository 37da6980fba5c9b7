"""Implementations that take turns in the same processes, a block of steps each.

Turns of a second follow each other as A B C, C B A, …: what else the machine does falls on all of
them alike, which it does not where each has a process, and its luck with memory, of its own.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import torch
import torch.distributed as dist
from torch import nn

import dpbench
from dpbench import architecture
from dpbench.data import datasets
from dpbench.measure.implementations import Plain
from dpbench.measure.step import Trainer
from dpbench.rendezvous.process_group import process_group

WARMUP_STEPS = 3
"""Buckets are rebuilt after the first, a static graph is known after the second."""

Seconds = dict[str, list[float]]
"""By side, the seconds of each of its blocks."""
Step = Callable[[], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """What every side trains, and how long at a time."""

    architecture: str
    batch: int
    """Samples per replica."""
    steps: int
    """Of a block."""
    rounds: int
    """Blocks of each side."""
    compiled: bool = False
    """By torch.compile, before it is wrapped."""

    def __str__(self) -> str:
        return f"{self.architecture}, batch {self.batch}{', compiled' if self.compiled else ''}"


def two_ranks(load: Load, rank: int) -> Seconds:
    """Every implementation of one replica per process, between two of them."""
    torch.set_num_threads(1)
    with process_group("gloo", device="cpu"):
        return take_turns(_between_two(load, rank), load.steps, load.rounds)


def _between_two(load: Load, rank: int) -> dict[str, Step]:
    shm = dist.new_group(backend="shm")
    torchs = nn.parallel.DistributedDataParallel
    wrappers: dict[str, Callable[[nn.Module], nn.Module]] = {
        "independent": lambda module: module,
        "ddp/shm": lambda module: dpbench.DistributedDataParallel(module, process_group=shm),
        "ddp/gloo": dpbench.DistributedDataParallel,
        "torch-ddp/gloo": torchs,
        "torch-ddp-static/gloo": lambda module: torchs(
            module, gradient_as_bucket_view=True, static_graph=True
        ),
    }
    return {name: _training(load, wrap, rank) for name, wrap in wrappers.items()}


def one_process(load: Load, rank: int) -> Seconds:
    """The plain module, ddp without a peer, and dp with two replicas; a thread for each replica.

    With dp the caller has the threads of both replicas, as where nothing is set, for the optimizer.
    """
    torch.set_num_threads(1)
    wrappers: dict[str, Callable[[nn.Module], nn.Module]] = {
        "single": lambda module: module,
        "ddp ×1": dpbench.DistributedDataParallel,
        "dp ×2": lambda module: dpbench.DataParallel(module, ["cpu", "cpu"], threads_per_replica=1),
    }
    with process_group("gloo", device="cpu"):
        sides = {
            name: _training(load, wrap, rank, replicas=2 if name == "dp ×2" else 1)
            for name, wrap in wrappers.items()
        }
        sides["dp ×2"] = _with_threads(2, sides["dp ×2"])
        return take_turns(sides, load.steps, load.rounds)


def _with_threads(count: int, step: Step) -> Step:
    def with_threads() -> None:
        before = torch.get_num_threads()
        torch.set_num_threads(count)
        step()
        torch.set_num_threads(before)

    return with_threads


def _training(
    load: Load, wrap: Callable[[nn.Module], nn.Module], rank: int, *, replicas: int = 1
) -> Step:
    """A step of plain SGD on this process's part of a batch, the same at every step."""
    architecture_ = architecture.load(load.architecture)
    samples = load.batch * replicas
    data = datasets.load("synthetic", None, architecture_, seed=rank, samples=samples)
    torch.manual_seed(0)
    module = architecture_.build_model()
    if load.compiled:
        module.compile()
    model = wrap(module)
    sgd = torch.optim.SGD(model.parameters(), lr=1e-3)
    trainer = Trainer(Plain(model), sgd, architecture_, data, accumulation_steps=1)
    batch = [torch.arange(samples)]
    return lambda: trainer.step(batch)


def take_turns(sides: dict[str, Step], steps: int, rounds: int) -> Seconds:
    """Blocks of `steps` steps of every side, `rounds` times; a collective of the default group."""
    control = dist.new_group(backend="gloo")
    gc.disable()  # a collection would fall on one side
    for step in sides.values():
        for _ in range(WARMUP_STEPS):
            step()
    seconds: Seconds = {name: [] for name in sides}
    for number in range(rounds):
        for name in sides if number % 2 == 0 else reversed(sides):
            gc.collect()
            dist.barrier(control)
            start = perf_counter()
            for _ in range(steps):
                sides[name]()
            seconds[name].append(perf_counter() - start)
    return seconds
