"""What a step of our DistributedDataParallel costs its process beyond the module, communication
left out: seconds per step, per tensor, per bucket and per rank, from 2 to 512 ranks.

A group of torch's fake backend has any number of ranks in one process, and its collectives do
nothing. What is left is the wrapper: its hooks, and small copies into buckets.
The processor time of the calling thread counts, so other processes of the machine matter little.

dpbench/analysis/projection/wrapper_cost.toml keeps the range of several runs, which is printed
beside each figure.
"""

from __future__ import annotations

import gc
import itertools
import math
from collections.abc import Iterator, Sequence
from functools import partial
from statistics import median
from time import thread_time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from scipy.special import stdtrit
from torch import Tensor, nn
from torch.testing._internal.distributed.fake_pg import FakeStore

import dpbench
from dpbench.analysis.projection.step_model import Ends
from dpbench.analysis.projection.wrapper_cost import StepCost, wrapper_cost
from tests.benchmarks.figure import Figure

TENSORS = (16, 128, 512, 1024)
BUCKETS = (1, 4, 16)
RANKS = (2, 512)
ELEMENTS = 16
"""Of each tensor: copying them costs next to nothing."""
ROUNDS, STEPS, WARMUP_STEPS = 15, 4, 4
TERMS = ("step", "tensor", "bucket", "rank")
RESNET50 = (1, 161, 5, 512)
"""A step, tensors, buckets and ranks of ResNet-50 on 64 nodes of 8 GPUs."""


class _Sum(torch.autograd.Function):
    """One node for all parameters, so that the module itself costs little."""

    @staticmethod
    def forward(ctx: Any, *parameters: Tensor) -> Tensor:
        ctx.count = len(parameters)
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, *received: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.ones(ctx.count, ELEMENTS).unbind())


class Many(nn.Module):
    """A module of as many parameters as asked for."""

    def __init__(self, tensors: int) -> None:
        super().__init__()
        self.held = nn.ParameterList(torch.zeros(ELEMENTS) for _ in range(tensors))

    def forward(self) -> Tensor:
        result: Tensor = _Sum.apply(*self.held)  # type: ignore[no-untyped-call]
        return result


def run() -> Iterator[Figure]:
    torch.set_num_threads(1)
    kept = wrapper_cost()
    yield from _of_wrapper("ddp", {}, kept.dynamic)
    yield from _of_wrapper("ddp, static graph", {"static_graph": True}, kept.static)


def _of_wrapper(name: str, options: dict[str, bool], kept: StepCost) -> Iterator[Figure]:
    points, costs = [], []
    per_rank = (0.0, wrapper_cost().rank_seconds)
    terms = (kept.step_seconds, kept.tensor_seconds, kept.bucket_seconds, per_rank)
    for tensors, buckets, ranks in itertools.product(TENSORS, BUCKETS, RANKS):
        points.append((1, tensors, buckets, ranks))
        costs.append(_seconds(tensors, buckets, ranks, options))
    for term, number, ends in zip(TERMS, np.eye(len(TERMS)), terms, strict=True):
        yield _figure(f"{name}: cost per {term}", points, costs, number, ends)
    what = "161 tensors in 5 buckets on 512 ranks"
    _, tensors, buckets, _ = RESNET50
    ends = kept.seconds(tensors, buckets)
    yield _figure(f"{name}: cost of a step of {what}", points, costs, np.array(RESNET50), ends)


def _figure(
    name: str,
    points: Sequence[Sequence[int]],
    costs: Sequence[float],
    at: np.ndarray[Any, Any],
    kept: Ends,
) -> Figure:
    """The least-squares plane through the points, at a place, with its 95 % interval.

    Residuals are relative, as large costs vary by more; the plane is fitted to ratios of 1.
    """
    rows = np.array(points, dtype=float) / np.array(costs)[:, None]
    found, *_ = np.linalg.lstsq(rows, np.ones(len(costs)), rcond=None)
    freedom = len(costs) - len(found)
    variance = float(np.sum((rows @ found - 1) ** 2)) / freedom
    error = math.sqrt(variance * float(at @ np.linalg.inv(rows.T @ rows) @ at))
    value, half = float(at @ found), float(stdtrit(freedom, 0.975)) * error
    found_ends, kept_ends = (
        " to ".join(f"{end * 1e6:.3g}" for end in ends)
        for ends in ((value - half, value + half), kept)
    )
    text = f"{value * 1e6:.3g} µs ({found_ends}, n = {len(costs)}); kept: {kept_ends}"
    return Figure(name=name, value=text, target="nothing", met=True)


def _seconds(tensors: int, buckets: int, ranks: int, options: dict[str, bool]) -> float:
    """Processor time of a wrapped step - that of a bare one, the median over pairs of blocks."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        per_bucket = -(-tensors // buckets)
        wrapped = dpbench.DistributedDataParallel(
            Many(tensors),
            init_sync=False,
            bucket_cap_mb=per_bucket * ELEMENTS * 4 / 1024**2,
            **options,
        )
        sides = [partial(_step, module) for module in (wrapped, Many(tensors))]
        gc.disable()
        for side in sides:
            for _ in range(WARMUP_STEPS):
                side()
        return median(_block(sides[0]) - _block(sides[1]) for _ in range(ROUNDS)) / STEPS
    finally:
        gc.enable()
        dist.destroy_process_group()


def _step(module: nn.Module) -> None:
    module.zero_grad()
    module().backward()


def _block(step: partial[None]) -> float:
    start = thread_time()
    for _ in range(STEPS):
        step()
    return thread_time() - start


if __name__ == "__main__":
    for figure in run():
        print(f"{figure.name}: {figure.value}; promised {figure.target}", flush=True)
