"""DataParallel with two CPU replicas against the plain module, in one process."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import nn

import dpbench
from tools.benchmarks.ddp import Case, training_step
from tools.benchmarks.paired import Benchmark, Seconds, Step, on_ranks, ratio, take_turns

CASES = (
    (Case(name="mnist_cnn", batch=64, steps=5, rounds=16), 1.6),
    (Case(name="mlp", batch=32, steps=10, rounds=16), 0.0),
)
"""What is trained, and the speedup that is wanted, 0 for any."""


def run() -> Iterator[Benchmark]:
    for case, wanted in CASES:
        seconds = on_ranks(partial(measure, case), ranks=1)
        halves = [block / 2 for block in seconds["dp ×2"]]  # a step takes two batches
        found = ratio(seconds["single"], halves)
        yield Benchmark(f"images/s of dp ×2 ÷ single ({case})", found, least=wanted)


def measure(case: Case) -> Seconds:
    def replicate(module: nn.Module) -> nn.Module:
        replicas: nn.Module = dpbench.DataParallel(module, ["cpu", "cpu"])
        return replicas

    sides = {
        "single": training_step(case, lambda module: module),
        "dp ×2": _with_two_threads(training_step(case, replicate, replicas=2)),
    }
    return take_turns(sides, case.steps, case.rounds)


def _with_two_threads(step: Step) -> Step:
    """The caller of dp has the threads of both replicas for its optimizer, as by default."""

    def with_two_threads() -> None:
        torch.set_num_threads(2)
        step()
        torch.set_num_threads(1)

    return with_two_threads
