"""A plain training script as users have it, into which faults can be planted: it knows nothing of
dpbench."""

from __future__ import annotations

import argparse
import os
import random
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


def planted(fault: str, step: int) -> None:
    """What goes wrong in the middle of the training."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if fault == "slow-rank" and rank == 1:
        time.sleep(0.01)
    if fault == "straggler" and ranks > 1 and random.Random(step).randrange(2 * ranks) == rank:
        time.sleep(0.02)
    if fault == "slow-start":
        time.sleep(0.02 * (step < 25))
    if step < 8:
        return
    if fault == "raise" and rank == ranks - 1:
        raise ValueError("the loss is a banana")
    if fault == "exit":
        sys.exit(7)
    if fault == "hang":
        time.sleep(600)
    if fault == "leave":
        os._exit(9)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--samples", type=int, default=640)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=0)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--micro-steps", type=int, default=1)
    parser.add_argument("--seconds-to")
    parser.add_argument("--fault", default="none")
    chosen = parser.parse_args()
    if chosen.fault == "spawn":
        torch.multiprocessing.spawn(print, nprocs=2)
    if chosen.fault != "no-group":
        dist.init_process_group("gloo")
    print("the script writes to its standard output")
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(32, chosen.width), nn.ReLU()]
    layers += [nn.Linear(chosen.width, chosen.width), nn.ReLU()] * chosen.layers
    model: nn.Module = nn.Sequential(*layers, nn.Linear(chosen.width, 10))
    if chosen.fault == "threads":
        torch.set_num_threads(4)
    if chosen.fault not in ("no-group", "not-wrapped"):
        finds = chosen.fault == "find-unused"
        model = DistributedDataParallel(model, find_unused_parameters=finds)
    if chosen.fault == "differ":
        with torch.no_grad():
            next(model.parameters()).add_(int(os.environ["RANK"]))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    samples = torch.randn(chosen.samples, 32), torch.randint(10, (chosen.samples,))
    data = (SlowSamples if chosen.fault == "slow-samples" else TensorDataset)(*samples)
    ranks, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    sampler = DistributedSampler(data, ranks, rank)
    loader = DataLoader(
        data, chosen.batch_size, sampler=sampler, num_workers=chosen.workers, drop_last=True
    )
    step, last, times = 0, time.perf_counter(), []
    for _ in range(chosen.epochs):
        for inputs, targets in loader:
            nn.functional.cross_entropy(model(inputs), targets).backward()
            step += 1
            if step % chosen.micro_steps == 0 and chosen.fault != "no-optimizer":
                optimizer.step()
                optimizer.zero_grad()
                planted(chosen.fault, step)
                times.append(time.perf_counter() - last)
                last = time.perf_counter()
    if chosen.seconds_to and rank == 0:
        with open(chosen.seconds_to, "a") as file:  # noqa: PTH123 - as scripts have it
            file.write(f"{sum(times[10:]) / len(times[10:])}\n")


if __name__ == "__main__":
    main()
