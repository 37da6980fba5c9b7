"""A plain module on every rank: average gradients by hand, see that ranks agree, or average rarely.

dpbench launch --nproc-per-node 2 docs/recipes/keep_ranks_equal.py
"""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

import dpbench
from dpbench.parallel import check_sync, sync_gradients


def main() -> bool:
    with dpbench.process_group() as ranks:
        torch.manual_seed(1)
        module = nn.Linear(8, 1).to(ranks.device)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
        torch.manual_seed(2 + ranks.rank)

        # By hand, after backward: a parameter that has no gradient on some rank counts as zero.
        for _ in range(5):
            optimizer.zero_grad()
            _loss(module, ranks.device).backward()
            sync_gradients(module)
            optimizer.step()
        check_sync(module)  # 16 bytes travel; raises with the tensors that differ

        # Every fourth step: less to send, but a different algorithm. Ranks differ in between.
        averager = PeriodicModelAverager(period=4, warmup_steps=3)
        for _ in range(8):
            optimizer.zero_grad()
            _loss(module, ranks.device).backward()
            optimizer.step()
            averager.average_parameters(module.parameters())
        check_sync(module)

        # What a check finds: one weight is changed on the last rank.
        if ranks.rank == ranks.size - 1:
            with torch.no_grad():
                module.weight[0, 3] += 0.5
        try:
            check_sync(module)
        except RuntimeError as error:
            if ranks.rank == 0:
                print(error)
            return True
        return False


def _loss(module: nn.Module, device: torch.device) -> torch.Tensor:
    inputs = torch.randn(16, 8, device=device)
    return (module(inputs) - inputs.mean(dim=1, keepdim=True)).square().mean()


if __name__ == "__main__":
    main()
