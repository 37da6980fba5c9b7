"""A training script as users have it: a ResNet, torch's DDP and a DataLoader.

It does not use dpbench; `make gpu` measures it with `dpbench explain`.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from dpbench.architectures.resnet import Architecture
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BATCH = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--depth", type=int, default=50)
    parser.add_argument("--image", type=int, default=224)
    chosen = parser.parse_args()

    gpus, ranks = torch.cuda.device_count(), int(os.environ["WORLD_SIZE"])
    if gpus:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % gpus)
    device = torch.device("cuda" if gpus else "cpu")
    dist.init_process_group("nccl" if gpus >= ranks else "gloo")

    torch.manual_seed(0)
    resnet = Architecture(depth=chosen.depth, image=chosen.image).build_model().to(device)
    model = DistributedDataParallel(resnet)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(8 * BATCH, 3, chosen.image, chosen.image)
    data = TensorDataset(images, torch.randint(10, (len(images),)))
    sampler = DistributedSampler[tuple[torch.Tensor, ...]](data)
    loader = DataLoader(data, BATCH, sampler=sampler, pin_memory=bool(gpus))

    for epoch in range(1000):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            outputs = model(inputs.to(device, non_blocking=True))
            loss = F.cross_entropy(outputs, targets.to(device, non_blocking=True))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
