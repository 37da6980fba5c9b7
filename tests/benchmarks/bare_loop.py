"""The loop that somebody would write without dpbench; prints the median step's seconds.

It has the memory allocator of a rank: with glibc's default the same loop differs by up to a fifth
between two runs of this very script (see dpbench/measure/allocator.py).
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

from architectures.mnist_cnn import Architecture
from dpbench.data import datasets
from dpbench.data.sharding import GlobalBatchSampler
from dpbench.measure.allocator import keep_freed_memory


def main(prepared: Path, batch: int, warmup: int, steps: int) -> None:
    keep_freed_memory()
    torch.set_num_threads(1)
    architecture = Architecture()
    data = datasets.load("digits", prepared, architecture, seed=0, samples=1)
    torch.manual_seed(0)
    model = architecture.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sampler = GlobalBatchSampler(len(data), batch, first=0, count=batch, seed=0)
    marks = []
    for indices in sampler.batches(0, warmup + steps):
        marks.append(perf_counter())
        optimizer.zero_grad()
        loss = architecture.loss(model(data.inputs[indices]), data.targets[indices])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    marks.append(perf_counter())
    seconds = [end - start for start, end in pairwise(marks)]
    print(median(seconds[warmup:]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *(int(argument) for argument in sys.argv[2:]))
