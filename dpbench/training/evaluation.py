"""Loss and accuracy on the test samples; the numbers are the same whichever ranks compute them.

The samples are cut into blocks of one size. Which rank computes a block makes no difference, and
the blocks are added up in their order: so one process, rank 0 alone and all ranks together give
the same loss to the bit, on devices of one kind with as many threads each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dpbench.architecture import Architecture, SupportsAccuracy
from dpbench.data.batch import call
from dpbench.data.datasets import Dataset
from dpbench.measure.device import autocast, forked_random
from dpbench.rendezvous.process_group import RankGroup
from dpbench.training.events import Score

BLOCK_SAMPLES = 256


def evaluate(
    module: nn.Module,
    architecture: Architecture,
    test: Dataset,
    *,
    device: torch.device,
    ranks: RankGroup,
    how: Literal["sharded", "rank0"],
    dtype: str,
) -> Score:
    """The score of the module on all test samples, the same on every rank; a collective.

    It changes nothing that training uses: no parameter, no mode, no random number.

    Args:
        module: the bare module, on `device`; its parameters and buffers are the same on every rank.
        test: at least one sample, the same on every rank.
        how: "sharded" means that every rank takes its part of the blocks; "rank0" means that rank 0
            takes all, and the others wait, however long it takes.
        dtype: of the forward pass, as in training.

    Raises RuntimeError: another rank failed in the meantime.
    """
    blocks = range(math.ceil(len(test) / BLOCK_SAMPLES))

    def sums_of(chosen: Sequence[int]) -> Tensor:
        """Sums (blocks, 2): the loss over each chosen block's samples, and its right targets; other
        blocks are zero."""
        # They stay on the device until all are computed.
        sums = torch.zeros(len(blocks), 2, dtype=torch.float64, device=device)
        modes = [(child, child.training) for child in module.modules()]
        module.eval()
        try:
            with forked_random(device), torch.no_grad(), autocast(device, dtype):
                for block in chosen:
                    begin = block * BLOCK_SAMPLES
                    samples = test.part(begin, begin + BLOCK_SAMPLES).to(device)
                    outputs = call(module, samples.inputs)
                    loss = architecture.loss(outputs, samples.targets)
                    sums[block, 0] = loss.double() * len(samples)
                    if isinstance(architecture, SupportsAccuracy):
                        sums[block, 1] = architecture.count_correct(outputs, samples.targets)
        finally:
            for child, training in modes:
                child.training = training
        return sums.cpu()

    if how == "rank0":
        sums = ranks.on_first(lambda: sums_of(blocks))
    else:
        sums = sums_of(blocks[ranks.rank :: ranks.size])
        if ranks.control is not None:
            dist.all_reduce(sums, group=ranks.control)  # all but one add zero to a block
    losses, correct = sums.t().tolist()
    counted = int(sum(correct)) if isinstance(architecture, SupportsAccuracy) else None
    total = test.targets.numel() if isinstance(test.targets, Tensor) else len(test)
    return Score(loss=sum(losses) / len(test), correct=counted, total=total)
