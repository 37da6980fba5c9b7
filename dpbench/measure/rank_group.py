"""The ranks of one run: their process group, and a separate CPU group for control messages.

Environment variables (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT) come from the launcher.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from dpbench.measure.device import current_cuda_device
from dpbench.parallel.groups import PeerFailed, decoded, encoded, gather_values
from dpbench.rendezvous.barrier import wait_until
from dpbench.rendezvous.process_group import Membership, process_group
from dpbench.specs.traits import BACKENDS

T = TypeVar("T")

COLLECTIVE_TIMEOUT = timedelta(hours=1)
"""Timeout longer than any trial: the trial's own time limit ends a hang, and names its cause."""


@dataclass(frozen=True, slots=True)
class RankGroup:
    """The processes of one run; without arguments, one that is alone.

    Its methods are collectives: every rank calls them, in the same order. They exchange
    tensors on the CPU, so none of them touches a GPU.
    """

    control: dist.ProcessGroup | None = None
    """CPU group of all processes, beside the one that is measured."""
    membership: Membership | None = None
    """Place in the group that is measured."""

    @property
    def rank(self) -> int:
        return 0 if self.control is None else dist.get_rank(self.control)

    @property
    def size(self) -> int:
        return 1 if self.control is None else dist.get_world_size(self.control)

    def barrier(self) -> None:
        """Return when every rank has called it."""
        if self.control is not None:
            # dist.barrier would put its message on the GPU that the default group is bound to.
            dist.all_reduce(torch.zeros(1, device="cpu"), group=self.control)

    def max(self, value: float) -> float:
        """The largest `value` of all ranks."""
        return max(map(float, self.gather(value)))

    def gather(self, value: Any) -> list[Any]:
        """The `value` of every rank, by rank, as in `parallel.groups.gather_values`."""
        return [value] if self.control is None else gather_values(value, self.control)

    def gather_on_first(self, value: Any) -> list[Any] | None:
        """`gather` on rank 0; None elsewhere. Tensors from other ranks are on the CPU."""
        if self.control is None:
            return [value]
        return gather_values(value, self.control, root=0) or None

    def on_first(self, work: Callable[[], T]) -> T:
        """The result of `work` on rank 0, on every rank once it has ended, however long it takes.

        The others wait in the group's store, which has no time limit: if rank 0 dies, the launcher
        has to end them. The result is as in `gather_on_first`. Raises what `work` raises on rank 0,
        and PeerFailed on the others.
        """
        if self.control is None:
            return work()
        store = PrefixStore("on_first", self.control.get_group_store())
        end = f"end of turn {store.add(f'turns of {self.rank}', 1)}"
        message, failure = b"", ""
        if self.rank == 0:
            try:
                message = encoded(work())
            except BaseException as error:
                failure = f"{type(error).__name__}: {error}".partition("\n")[0]
                raise
            finally:
                store.set(end, failure.encode(errors="backslashreplace").decode())
        wait_until(lambda: store.check([end]))
        if failure := store.get(end).decode():
            raise PeerFailed(f"cannot complete: rank 0 failed while others waited: {failure}")
        length = torch.tensor(len(message), device="cpu")
        dist.broadcast(length, group=self.control, group_src=0)
        data = torch.frombuffer(bytearray(message or int(length)), dtype=torch.uint8)
        dist.broadcast(data, group=self.control, group_src=0)
        received: T = decoded(bytes(data.numpy()))
        return received


@contextmanager
def rank_group(
    backend: str, size: int, *, timeout: timedelta = COLLECTIVE_TIMEOUT
) -> Iterator[RankGroup]:
    """Join the process group of `size` ranks that the backend needs; leave it at the end.

    `timeout` bounds every wait for another rank, in all groups. Raises the errors of
    `process_group`. For NCCL the current CUDA device is this rank's.
    """
    has_group = backend in BACKENDS
    if size == 1 and not has_group:
        yield RankGroup()
        return
    group_backend = backend if has_group else "gloo"
    device = current_cuda_device() if BACKENDS[group_backend].cuda_only else "cpu"
    with process_group(group_backend, timeout=timeout, device=device) as membership:
        if group_backend == "gloo":
            control = dist.group.WORLD
        else:
            control = dist.new_group(backend="gloo", timeout=timeout)
        yield RankGroup(control, membership)
