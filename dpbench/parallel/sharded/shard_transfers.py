"""Reduce-scatter and all-gather of flat tensors that have one shard for each rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dpbench.parallel.groups import Wait, has_backend
from dpbench.parallel.shm import ShmProcessGroup

# torch 2.13 has renamed both, and deprecates the old names.
all_gather_single: Any = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter_single: Any = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


class ShardTransfers:
    """Starts the collectives of shards in the way that is fastest on the backend of a group.

    On gloo, ranks send each other messages: its all-gather takes twice as long, and its
    reduce-scatter is an all-reduce. A thread posts them, as to post one blocks while gloo reads or
    writes another. On shm, which takes less time than to wake a thread, all is done by what waits.

    Attributes:
        group, rank, size: the group, and this rank in it.
        overlap: whether they proceed before something waits for them.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self.group, self.rank, self.size = group, dist.get_rank(group), dist.get_world_size(group)
        self.overlap = not isinstance(group, ShmProcessGroup)
        self._peers = [rank for rank in range(self.size) if rank != self.rank]
        sends = device.type == "cpu" and has_backend(group, device, "gloo")
        self._thread = ThreadPoolExecutor(1, "dpbench-sharded") if sends else None
        # What other ranks send, until it is added; kept, as new memory costs as much as a message.
        self._received = torch.empty(0, dtype=torch.uint8)

    def reduce_scatter(self, flat: Tensor, average: Tensor) -> Wait:
        """Start to average a flat tensor over the ranks; `average` gets the shard of this rank."""
        if self._thread is not None:
            shards = list(flat.view(self.size, -1))
            return self._thread.submit(self._send_and_average, shards, average).result
        return self._start(partial(reduce_scatter_single, average, flat, dist.ReduceOp.AVG))

    def all_gather(self, flat: Tensor) -> Wait:
        """Start to give all ranks a flat tensor, of which each has its own shard."""
        shards = list(flat.view(self.size, -1))
        sent = shards[self.rank]
        if self._thread is not None:
            return self._thread.submit(self._send, [sent] * self.size, shards).result
        return self._start(partial(all_gather_single, flat, sent))

    def _start(self, collective: Callable[..., Any]) -> Wait:
        if not self.overlap:
            return partial(collective, group=self.group)
        wait: Wait = collective(group=self.group, async_op=True).wait
        return wait

    def _send_and_average(self, shards: Sequence[Tensor], average: Tensor) -> None:
        nbytes = self.size * average.nbytes
        if self._received.numel() < nbytes:
            self._received = torch.empty(nbytes, dtype=torch.uint8)
        received = self._received[:nbytes].view(average.dtype).view(self.size, -1)
        self._send(shards, list(received))
        torch.mul(shards[self.rank], 1 / self.size, out=average)
        for rank in self._peers:
            average.add_(received[rank], alpha=1 / self.size)

    def _send(self, sent: Sequence[Tensor], received: Sequence[Tensor]) -> None:
        """Send a tensor to each other rank, and receive one from it."""
        group: Any = self.group
        works = [group.recv([received[rank]], rank, 0) for rank in self._peers]
        works += [group.send([sent[rank]], rank, 0) for rank in self._peers]
        for work in works:
            work.wait()
