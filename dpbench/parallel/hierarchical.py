"""A communication hook that averages gradients inside each host first, and then between hosts.

    state = HierarchicalState()
    model.register_comm_hook(state, hierarchical)  # torch's DistributedDataParallel or ours

A bucket goes through three steps: the ranks of a host sum it in shared memory (`shm`), one rank of
each host sums the results over gloo, and sends them to the others of its host (`shm`). So a host
sends a bucket once, where gloo's ring with g ranks on each of two hosts sends it 2 (2g − 1) / 2g
times. No precision is lost.

Every rank has two threads: one sums inside the host, one waits for the network and sends the result
to the host. So the network carries one bucket while the next is summed, and both threads take the
buckets in the order of the calls, which is the same on all ranks.
"""

# No `from __future__ import annotations`: torch compares the hook's annotations with its classes.

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from dpbench.parallel.groups import gather_values, member_group
from dpbench.parallel.shm.creation import host_key


class HierarchicalState:
    """The groups and threads of one rank, for any number of models.

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
        # Two groups, as one's operations would be in another order on a leader than elsewhere.
        make_group_of_own: Any = dist.new_subgroups_by_enumeration
        self._sums, _ = make_group_of_own(hosts, backend="shm")
        self._results, _ = make_group_of_own(hosts, backend="shm")
        self._leaders = dist.new_group([ranks[0] for ranks in hosts], backend="gloo")
        self._inside = ThreadPoolExecutor(1, "dpbench-hierarchical-inside")
        self._between = ThreadPoolExecutor(1, "dpbench-hierarchical-between")

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
        error: list[BaseException] = []

        def result(_: "Future[None]") -> Tensor:
            # Raised here, and not passed to `ended.set_exception`, which torch's C++ code would
            # take for a result.
            if error:
                raise error[0]
            return flat

        def inside() -> Any:
            flat.div_(self.size)
            dist.all_reduce(flat, group=self._sums)
            if not self.is_leader:
                return None
            return dist.all_reduce(flat, group=self._leaders, async_op=True)

        def between() -> None:
            try:
                work = summed.result()
                if work is not None:
                    work.wait()
                dist.broadcast(flat, self._leader, group=self._results)
            except BaseException as raised:
                error.append(raised)
            ended.set_result(None)

        future = ended.then(result)
        summed = self._inside.submit(inside)
        self._between.submit(between)
        return future


def hierarchical(
    state: HierarchicalState,
    bucket: dist.GradBucket,  # type: ignore[name-defined] # missing in torch's stub
) -> Future[Tensor]:
    """Average a bucket inside each host first; torch's signature of a communication hook."""
    return state.average(bucket.buffer())


hierarchical.lossless = True  # type: ignore[attr-defined]
"""Whether the hook returns the exact average, up to rounding."""
