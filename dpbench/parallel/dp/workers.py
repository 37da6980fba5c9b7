"""Persistent threads for the replicas: run a job of each, wait for all, raise the first failure."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import Any

import torch

Job = Callable[[], Any]
_PARALLEL_ELEMENTS = 2**17
"""Enough for torch to write them with two threads."""


class WorkerPool:
    """Threads for the replicas, started at first use and again after `close`.

    They end when the pool is closed or garbage collected. A copy or a pickle of the pool is a
    new pool without threads.
    """

    def __init__(
        self, devices: Sequence[torch.device], threads_per_replica: int | None = None
    ) -> None:
        """
        Args:
            devices: the device of each replica.
            threads_per_replica: intra-op threads of each CPU worker; None divides the caller's
                evenly. The limit applies to the worker's thread only.

        Raises:
            TypeError, ValueError: threads_per_replica is no int or less than 1.
        """
        count = threads_per_replica
        if count is not None and (isinstance(count, bool) or not isinstance(count, int)):
            raise TypeError(f"got threads_per_replica={count!r}, expected an int")
        if count is not None and count < 1:
            raise ValueError(f"got threads_per_replica={count}, expected 1 or more")
        self.devices = tuple(devices)
        self.threads_per_replica = threads_per_replica
        self._threads: ThreadPoolExecutor | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return WorkerPool, (self.devices, self.threads_per_replica)

    def close(self) -> None:
        """End the threads; the next `run` starts new ones."""
        if self._threads is not None:
            self._threads.shutdown()
        self._threads = None

    def run(self, jobs: Sequence[Job]) -> list[Any]:
        """Run each job in a thread of its own and wait for all of them.

        Raises:
            The failure with the lowest index, with the message "Caught {type} in replica {index} on
            device {device}." and the traceback; of the same type if that can be made from a
            message.
        """
        if self._threads is None:
            # torch.set_num_threads affects one thread only after the caller's was initialised.
            total, on_cpu = torch.get_num_threads(), self.devices[0].type == "cpu"
            limit = self.threads_per_replica or max(1, total // len(self.devices))
            self._threads = ThreadPoolExecutor(
                max_workers=len(self.devices),
                thread_name_prefix="dpbench-replica",
                initializer=partial(_limit_threads, limit) if on_cpu else None,
            )
        futures = [self._threads.submit(job) for job in jobs]
        wait(futures)
        for index, future in enumerate(futures):
            if (error := future.exception()) is not None:
                raise _caught(error, index, self.devices[index]) from None
        return [future.result() for future in futures]


def _limit_threads(count: int) -> None:
    """Set the intra-op threads of this thread, and let idle OpenMP threads soon leave the cores.

    After each operation that the caller ran on several threads, such as the optimizer's, these spin
    for milliseconds on the cores that the replicas need: a small step took 1.6 times the processor
    time. GNU's OpenMP shortens that a thousandfold while it has more threads than there are cores,
    which one parallel operation in each worker makes sure of.
    """
    torch.set_num_threads(2)
    torch.zeros(_PARALLEL_ELEMENTS)
    torch.set_num_threads(count)


def _caught(error: BaseException, index: int, device: torch.device) -> BaseException:
    """A replica's failure to raise in the caller: the same type, with replica, device and
    traceback."""
    kind = type(error)
    trace = "".join(traceback.format_exception(error))
    error.__traceback__ = None  # its frames would keep the replica's tensors alive
    text = f"Caught {kind.__name__} in replica {index} on device {device}.\n{trace}"
    try:
        return kind(text)
    except Exception:  # the type needs other arguments
        return RuntimeError(text)
