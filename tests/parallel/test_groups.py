"""Ranks tell each other small messages of different lengths, and decide together."""

from __future__ import annotations

from contextlib import suppress

import torch
import torch.distributed as dist
from torch import nn

from dpbench.parallel import DistributedDataParallel
from dpbench.parallel.agreement import check_sync
from dpbench.parallel.groups import any_rank, gather_bytes
from tests.parallel.worlds import World

world = World(backend="gloo")


@world.body
def messages_of_any_length_arrive_in_the_order_of_the_ranks(rank: int) -> None:
    group = dist.group.WORLD
    assert group is not None
    for lengths in ((0, 0), (3, 0), (1024, 1), (1025, 0), (5, 100_000)):
        sent = [bytes([65 + other]) * length for other, length in enumerate(lengths)]
        assert gather_bytes(sent[rank], group) == sent
    assert gather_bytes(b"ends with zeros\0\0", group)[1] == b"ends with zeros\0\0"


class RunsOutOfMemory(nn.Linear):
    """At the second forward of rank 1."""

    forwards = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.forwards += 1
        if self.forwards == 2 and dist.get_rank() == 1:
            raise torch.OutOfMemoryError("a batch that is too large")
        return super().forward(inputs)


@world.body
def a_batch_that_fails_on_one_rank_is_skipped_on_all(rank: int) -> None:
    for wrap in (DistributedDataParallel, nn.parallel.DistributedDataParallel):
        torch.manual_seed(0)
        module = wrap(RunsOutOfMemory(3, 2))
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        taken = []
        for step in range(4):
            loss = None
            with suppress(torch.OutOfMemoryError):
                loss = module(torch.full((2, 3), float(rank + step))).mean()
            if any_rank(loss is None):
                continue
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            taken.append(step)
        assert taken == [0, 2, 3]
        check_sync(module, gradients=True)


test_on_ranks = world.test()
