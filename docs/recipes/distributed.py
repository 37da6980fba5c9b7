"""A process for every replica: the whole script, from the process group to the best checkpoint.

    dpbench launch --nproc-per-node 2 docs/recipes/distributed.py --epochs 10

The same file runs on several machines; see docs/launch.md.
"""

from __future__ import annotations

import argparse
import copy
from datetime import timedelta

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dpbench
from dpbench.data.sharding import BalancedSampler
from dpbench.parallel import broadcast_checkpoint, check_sync
from dpbench.specs.workload import scale_lr


def main(*arguments: str) -> float:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", "--batch_size", type=int, default=32)
    parser.add_argument("--learning-rate", "--learning_rate", type=float, default=2e-2)
    options = parser.parse_args(arguments or None)

    with dpbench.process_group(timeout=timedelta(minutes=2)) as ranks:  # always left in the end
        # The linear rule: this many samples stand behind a step, so the rate grows with them.
        rate = scale_lr(options.learning_rate, ranks.size, "linear")
        if ranks.rank == 0:
            print(f"learning rate {rate:.2e}, batch {options.batch_size} × {ranks.size}")

        torch.manual_seed(1)  # the same data and weights everywhere
        inputs = torch.randn(500, 20)
        targets = inputs[:, :3].argmax(dim=1)
        train, test = (
            TensorDataset(inputs[:400], targets[:400]),
            (inputs[400:].to(ranks.device), targets[400:].to(ranks.device)),
        )
        module = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3)).to(ranks.device)
        model = dpbench.DistributedDataParallel(module)
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)

        # Every sample once an epoch, on one rank; sizes differ by at most one.
        sampler = BalancedSampler(len(train), rank=ranks.rank, world_size=ranks.size)
        loader = DataLoader(train, batch_size=options.batch_size, sampler=sampler)
        best, accuracy = None, 0.0
        for epoch in range(options.epochs):
            sampler.set_epoch(epoch)  # another order
            with model.join():  # ranks may have a batch more than others
                for batch, answers in loader:
                    optimizer.zero_grad()
                    logits = model(batch.to(ranks.device))
                    F.cross_entropy(logits, answers.to(ranks.device)).backward()
                    optimizer.step()
            if ranks.rank == 0:  # alone: evaluating the bare module is no collective
                score = _accuracy(module, *test)
                print(f"epoch {epoch + 1}: accuracy {score:.1%}")
                if best is None or score > accuracy:
                    best, accuracy = copy.deepcopy(module.state_dict()), score

        if best is not None:
            module.load_state_dict(best)
        broadcast_checkpoint(module, src=0)  # as tensors; all ranks hold the best now
        check_sync(module)
        return _accuracy(module, *test)


@torch.no_grad()
def _accuracy(module: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> float:
    return (module(inputs).argmax(dim=1) == targets).float().mean().item()


if __name__ == "__main__":
    main()
