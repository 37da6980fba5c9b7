"""A communication hook that averages gradients inside each host first, and then between hosts.

    state = HierarchicalState()
    model.register_comm_hook(state, hierarchical)  # torch's DistributedDataParallel or ours

A bucket goes through three steps: the ranks of a host sum it in shared memory (`shm`), one rank of
each host sums the results over gloo, and sends them to the others of its host (`shm`). So a host
sends a bucket once, where gloo's ring with g ranks on each of two hosts sends it 2 (2g − 1) / 2g
times. No precision is lost.

A thread of each rank does this, while backward goes on. It takes the buckets in the order of the
calls, which is the same on all ranks.
"""

# No `from __future__ import annotations`: torch compares the hook's annotations with its classes.

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from dpbench.parallel.groups import gather_values, member_group
from dpbench.parallel.shm.process_group import host_key


class HierarchicalState:
    """The groups and the thread of one rank, for any number of models.

    Attributes:
        size: number of ranks.
        is_leader: whether this rank exchanges data with other hosts.
    """

    def __init__(self, *, host: str | None = None) -> None:
        """Find out which ranks share a host, and make groups of them; a collective of the default
        group, whose ranks the model has.

        Args:
            host: the same text on all ranks of a host; None detects the host, and counts each
                container as a host of its own.

        Raises:
            RuntimeError: there is no process group, or the ranks of a host cannot share memory.
        """
        group = member_group(None, "HierarchicalState")
        own = host or host_key()
        by_host: dict[str, list[int]] = {}
        for rank, name in enumerate(gather_values(own, group)):
            by_host.setdefault(name, []).append(rank)
        hosts = list(by_host.values())
        self.size = dist.get_world_size()
        self._leader = by_host[own][0]
        self.is_leader = self._leader == dist.get_rank()
        make_own_group: Any = dist.new_subgroups_by_enumeration
        self._inside, _ = make_own_group(hosts, backend="shm")
        self._leaders = dist.new_group([ranks[0] for ranks in hosts], backend="gloo")
        self._thread = ThreadPoolExecutor(1, "dpbench-hierarchical")

    def average(self, flat: Tensor) -> "Future[Tensor]":
        """Begin to average a tensor over all ranks, in place.

        Args:
            flat: contiguous and on the CPU.

        Returns:
            A future of the tensor. It raises torch.distributed.DistBackendError where a rank is
            missing.

        Raises:
            ValueError: the tensor is not on the CPU.
        """
        if not flat.is_cpu:
            raise ValueError(f"hierarchical averages CPU tensors, got {flat.device}; use nccl")
        ended: Future[None] = Future()

        def reduce() -> None:
            flat.div_(self.size)
            dist.all_reduce(flat, group=self._inside)
            if self.is_leader:
                dist.all_reduce(flat, group=self._leaders)
            dist.broadcast(flat, self._leader, group=self._inside)

        done = self._thread.submit(reduce)

        def result(_: "Future[None]") -> Tensor:
            # Raised here, and not passed to `ended.set_exception`, which torch's C++ code would
            # take for a result.
            done.result()
            return flat

        future = ended.then(result)
        done.add_done_callback(lambda _: ended.set_result(None))
        return future


def hierarchical(
    state: HierarchicalState,
    bucket: dist.GradBucket,  # type: ignore[name-defined] # missing in torch's stub
) -> Future[Tensor]:
    """Average a bucket inside each host first; torch's signature of a communication hook."""
    return state.average(bucket.buffer())


hierarchical.lossless = True  # type: ignore[attr-defined]
"""Whether the hook returns the exact average, up to rounding."""
