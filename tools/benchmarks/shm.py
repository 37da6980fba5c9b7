"""All-reduce of two ranks on shm against gloo over loopback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.distributed as dist

from dpbench.parallel.shm import allocate_group_zeros
from tools.benchmarks.paired import Benchmark, Seconds, on_ranks, ratio, take_turns

ROUNDS = 20
SIZES = {"4 KB": (4_000, 100, 12.0), "25 MB": (25_000_000, 1, 3.5), "100 MB": (100_000_000, 1, 1.0)}
"""The bytes of a message, the calls of a block, and what gloo ÷ shm is wanted to be."""


def run() -> Iterator[Benchmark]:
    for size, (_, _, wanted) in SIZES.items():
        seconds = on_ranks(partial(measure, size), ranks=2)
        name = f"all-reduce of {size}, gloo ÷ shm"
        yield Benchmark(name, ratio(seconds["gloo"], seconds["shm"]), least=wanted)
        if size != "4 KB":
            anywhere = ratio(seconds["gloo"], seconds["shm, anywhere"])
            yield Benchmark(f"{name}, tensors outside the group's memory", anywhere)
            copy = ratio(seconds["copy"], seconds["shm"])
            yield Benchmark(f"copy of {size} ÷ all-reduce on shm", copy)


def measure(size: str) -> Seconds:
    nbytes, calls, _ = SIZES[size]
    shm = dist.new_group(backend="shm")
    inside = allocate_group_zeros(shm, nbytes // 4, torch.float32, torch.device("cpu"))
    outside, copy = torch.zeros(nbytes // 4), torch.zeros(nbytes // 4)
    sides: dict[str, Callable[[], object]] = {
        "gloo": lambda: dist.all_reduce(outside),
        "shm": lambda: dist.all_reduce(inside, group=shm),
        "shm, anywhere": lambda: dist.all_reduce(outside, group=shm),
        "copy": lambda: copy.copy_(outside),
    }
    return take_turns(sides, calls, ROUNDS)
