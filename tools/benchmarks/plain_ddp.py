"""A training script as a user writes it, for torchrun: torch's DDP on gloo, nothing of dpbench.

Writes the processor time of a step of each rank. The samples are those of the trial that it is
compared with, indexed as a trial indexes them.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from dpbench.architectures.mnist_cnn import Architecture
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel


def indexed(inputs: Tensor, targets: Tensor, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches forever, indexed from the tensors."""
    rank, size = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(0)
    while True:
        order = torch.randperm(len(inputs), generator=generator)
        for start in range(0, len(order) - batch * size + 1, batch * size):
            mine = order[start + rank * batch : start + (rank + 1) * batch]
            yield inputs[mine], targets[mine]


def main(data: Path, out: Path, batch: int, warmup: int, steps: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    architecture = Architecture()
    model = DistributedDataParallel(architecture.build_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    arrays = np.load(data)
    inputs, targets = torch.from_numpy(arrays["inputs"]), torch.from_numpy(arrays["targets"])
    batches = indexed(inputs, targets, batch)
    for step in range(warmup + steps):
        if step == warmup:
            dist.barrier()
            before = resource.getrusage(resource.RUSAGE_SELF)
        samples, labels = next(batches)
        optimizer.zero_grad()
        loss = architecture.loss(model(samples), labels)
        loss.backward()
        optimizer.step()
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    (out / f"rank{os.environ['RANK']}.json").write_text(json.dumps(cpu / steps))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *(int(number) for number in sys.argv[3:]))
