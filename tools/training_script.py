"""A training script as users have it: torch's DDP and a DataLoader, on a model of this tree.

`make gpu` and `make bench` measure it.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset

from dpbench.architecture import load_architecture


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="resnet:depth=50,image=224")
    parser.add_argument("--batch", type=int, default=32)
    chosen = parser.parse_args()

    gpus, ranks = torch.cuda.device_count(), int(os.environ["WORLD_SIZE"])
    if gpus:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % gpus)
    device = torch.device("cuda" if gpus else "cpu")
    dist.init_process_group("nccl" if gpus >= ranks else "gloo")

    torch.manual_seed(0)
    architecture = load_architecture(chosen.model)
    module = DistributedDataParallel(architecture.build_model().to(device))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    samples = architecture.synthetic_batch(
        8 * chosen.batch * ranks, torch.Generator().manual_seed(0)
    )
    data = TensorDataset(*samples)
    sampler = DistributedSampler[tuple[torch.Tensor, ...]](data)
    # Whole batches are indexed at once, as those of a trial are.
    batches = BatchSampler(sampler, chosen.batch, drop_last=True)  # type: ignore[arg-type]
    loader = DataLoader(data, batch_size=None, sampler=batches, pin_memory=bool(gpus))

    for epoch in range(1000):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            outputs = module(inputs.to(device, non_blocking=True))
            loss = architecture.loss(outputs, targets.to(device, non_blocking=True))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
