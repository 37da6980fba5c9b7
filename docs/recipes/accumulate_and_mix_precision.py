"""Fewer reductions, less memory: accumulated gradients, bfloat16, clipping, in the right order.

    dpbench launch --nproc-per-node 2 docs/recipes/accumulate_and_mix_precision.py

dpbench.DistributedDataParallel averages while the backward pass goes on, in buckets: there is
nothing left to overlap or to reduce afterwards, and a second all-reduce would multiply gradients.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import nn
from torch.nn import functional as F

import dpbench
from dpbench.parallel import check_sync

ACCUMULATE = 4


def main() -> tuple[int, int]:
    with dpbench.process_group() as ranks:
        torch.manual_seed(1)
        module = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1)).to(ranks.device)
        model = dpbench.DistributedDataParallel(module)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        torch.manual_seed(2 + ranks.rank)  # each rank its own samples
        micro_batches = torch.randn(10, 8, 20, device=ranks.device)
        steps = 0
        for window in micro_batches.split(ACCUMULATE):  # 4, 4 and 2
            optimizer.zero_grad()
            for number, inputs in enumerate(window, start=1):
                # Only the last backward of a window reduces; the others just add up.
                with model.no_sync() if number < len(window) else nullcontext():
                    with torch.autocast(ranks.device.type, dtype=torch.bfloat16):
                        outputs = model(inputs)
                    loss = F.mse_loss(outputs.float(), inputs.sum(dim=1, keepdim=True))
                    (loss / len(window)).backward()
            # After the reduction, and equal on all ranks, as the gradients are.
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=5.0)
            optimizer.step()
            steps += 1
        check_sync(model)
        if ranks.rank == 0:
            print(f"{len(micro_batches)} micro-batches, {steps} steps")
        once = sum(parameter.nbytes for parameter in model.parameters())
        return steps, model.reduced_bytes // once


if __name__ == "__main__":
    main()
