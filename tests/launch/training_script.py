"""A plain training script as users have it, into which faults can be planted: it knows nothing of
dpbench."""

from __future__ import annotations

import argparse
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class SlowSamples(TensorDataset):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        time.sleep(0.002)
        return super().__getitem__(index)


def planted(faults: list[str], step: int) -> None:
    """What goes wrong in the middle of the training."""
    if step < 8:
        return
    if "raise" in faults and int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
        raise ValueError("the loss is a banana")
    if "exit" in faults:
        sys.exit(7)
    if "hang" in faults:
        time.sleep(600)
    if "leave" in faults:
        os._exit(9)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--samples", type=int, default=640)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--micro-steps", type=int, default=1)
    parser.add_argument("--fault", default="none")
    chosen = parser.parse_args()
    faults = chosen.fault.split(",")
    if "spawn" in faults:
        torch.multiprocessing.spawn(print, nprocs=2)
    if "no-group" not in faults:
        dist.init_process_group("gloo")
    print("the script writes to its standard output")
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(
        nn.Linear(32, chosen.width), nn.ReLU(), nn.Linear(chosen.width, 10)
    )
    if "threads" in faults:
        torch.set_num_threads(4)
    if not {"no-group", "not-wrapped"} & {*faults}:
        finds = "find-unused" in faults
        model = DistributedDataParallel(model, find_unused_parameters=finds)
    if "differ" in faults:
        with torch.no_grad():
            next(model.parameters()).add_(int(os.environ["RANK"]))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    samples = torch.randn(chosen.samples, 32), torch.randint(10, (chosen.samples,))
    data = (SlowSamples if "slow-samples" in faults else TensorDataset)(*samples)
    ranks, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    sampler = None if "same-samples" in faults else DistributedSampler(data, ranks, rank)
    loader = {"sampler": sampler, "num_workers": chosen.workers, "drop_last": True}
    step = 0
    for _ in range(chosen.epochs):
        for inputs, targets in DataLoader(data, chosen.batch_size, **loader):
            nn.functional.cross_entropy(model(inputs), targets).backward()
            step += 1
            if step % chosen.micro_steps == 0 and "no-optimizer" not in faults:
                optimizer.step()
                optimizer.zero_grad()
                planted(faults, step)


if __name__ == "__main__":
    main()
