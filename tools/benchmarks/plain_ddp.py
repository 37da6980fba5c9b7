"""A training script as a user writes it, for torchrun: torch's DDP on gloo, nothing of dpbench.

Writes the processor time of a step of each rank. Its samples lie in memory and are indexed, as
those of the trial that it is compared with.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import process_time

import torch
import torch.distributed as dist
from dpbench.architectures.mnist_cnn import Architecture
from torch.nn.parallel import DistributedDataParallel


def main(out: Path, batch: int, warmup: int, steps: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    architecture = Architecture()
    model = DistributedDataParallel(architecture.build_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    samples = (warmup + steps) * batch * ranks
    inputs, targets = architecture.synthetic_batch(samples, torch.Generator().manual_seed(0))
    before = 0.0
    for step, mine in enumerate(torch.randperm(samples).view(-1, batch)[rank::ranks]):
        if step == warmup:
            dist.barrier()
            before = process_time()
        optimizer.zero_grad()
        loss = architecture.loss(model(inputs[mine]), targets[mine])
        loss.backward()
        optimizer.step()
    taken = (process_time() - before) / steps
    (out / f"rank{rank}.json").write_text(json.dumps(taken))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *(int(number) for number in sys.argv[2:]))
