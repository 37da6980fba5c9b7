"""The ranks that train or are measured together, as one of them sees them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from dpbench.parallel.groups import (
    CPU,
    PeerFailed,
    decoded,
    encoded,
    gather_values,
    message_device,
)
from dpbench.rendezvous.barrier import wait_until

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RankGroup:
    """The ranks that have joined a process group; without arguments, one that is alone.

    Its methods are collectives: every rank calls them, in the same order.
    """

    control: dist.ProcessGroup | None = None
    """The process group of these methods: the default one, or one beside it, on the CPU."""
    device: torch.device = CPU
    """Device on which this rank computes; for CUDA also the current device."""
    comm_init_seconds: float | None = None
    """Seconds from the arrival of the last rank until the group was made and its first collective
    had passed: the start-up cost of a communicator, which no timed window includes."""

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
            mark = torch.zeros(1, device=message_device(self.control))
            dist.all_reduce(mark, group=self.control)
            mark.item()  # waits for a GPU

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
        on = message_device(self.control)
        length = torch.tensor(len(message), device=on)
        dist.broadcast(length, group=self.control, group_src=0)
        data = torch.frombuffer(bytearray(message or int(length)), dtype=torch.uint8).to(on)
        dist.broadcast(data, group=self.control, group_src=0)
        received: T = decoded(data.cpu().numpy().tobytes())
        return received
