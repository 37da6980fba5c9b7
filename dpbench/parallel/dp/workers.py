"""One persistent thread per replica, and what a job in it takes over from the calling thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any

import torch

from dpbench.parallel import devices

_PARALLEL_ELEMENTS = 2**17
"""Enough for torch to write them with two threads."""


class WorkerPool:
    """Threads for the replicas: started at first use, ended when the pool is garbage collected."""

    def __init__(
        self, devices: Sequence[torch.device], threads_per_replica: int | None = None
    ) -> None:
        """Make one worker for each device.

        Args:
            threads_per_replica: intra-op threads of each CPU worker; None divides the caller's
                evenly.

        Raises:
            ValueError: threads_per_replica is no int of 1 or more.
        """
        count = threads_per_replica
        if count is not None and (type(count) is not int or count < 1):
            raise ValueError(f"got threads_per_replica={count!r}, expected a whole number above 0")
        self.devices = tuple(devices)
        self.threads_per_replica = threads_per_replica
        self._threads: list[ThreadPoolExecutor] = []

    def run(self, jobs: Sequence[Callable[[], Any]], *, in_turn: bool = False) -> list[Any]:
        """Run each job in the worker of its place and wait for all of them.

        Args:
            jobs: at most one for each device.
            in_turn: start each when the one before has ended.

        Raises:
            The failure with the lowest index, with a note of the replica and its device.
        """
        if not self._threads:
            self._start()
        futures = []
        for thread, job in zip(self._threads, jobs, strict=False):
            futures.append(thread.submit(job))
            if in_turn:
                wait(futures)
        wait(futures)
        try:
            for index, future in enumerate(futures):
                if (error := future.exception()) is not None:
                    error.add_note(f"raised in replica {index} on device {self.devices[index]}")
                    raise error
            return [future.result() for future in futures]
        finally:
            # The traceback would keep these alive, and they the error with the replica's tensors.
            del futures, future, error

    def _start(self) -> None:
        # torch.set_num_threads affects one thread only after the caller's count was initialized.
        total = torch.get_num_threads()
        on_cpu = sum(device.type == "cpu" for device in self.devices)
        limit = self.threads_per_replica or max(1, total // max(1, on_cpu))
        self._threads = [
            ThreadPoolExecutor(
                max_workers=1,
                thread_name_prefix=f"dpbench-replica-{index}",
                initializer=partial(_limit_threads, limit) if device.type == "cpu" else None,
            )
            for index, device in enumerate(self.devices)
        ]


def _limit_threads(count: int) -> None:
    """Set the intra-op threads of this thread, and let idle OpenMP threads soon leave the cores.

    After each operation that the caller ran on several threads, such as the optimizer's, these spin
    for milliseconds on the cores that the replicas need: a step of mlp took twice the processor
    time. GNU's OpenMP shortens that a thousandfold while it has more threads than there are cores,
    which one parallel operation in each worker makes sure of.
    """
    torch.set_num_threads(2)
    torch.zeros(_PARALLEL_ELEMENTS)
    torch.set_num_threads(count)


def caller_modes(
    replica_devices: Iterable[torch.device],
) -> Callable[[torch.device], AbstractContextManager[Any]]:
    """Capture grad mode, inference mode, autocast and CUDA streams of the calling thread.

    Returns:
        A function from a device to the context to enter in its worker.
    """
    used = set(replica_devices)
    gradients, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    cache = torch.is_autocast_cache_enabled()
    autocast = {
        kind: torch.get_autocast_dtype(kind)
        for kind in {"cpu", *(device.type for device in used)}
        if torch.is_autocast_enabled(kind)
    }
    streams = {d: devices.cuda.current_stream(d) for d in used if d.type == "cuda"}

    def entered(device: torch.device) -> AbstractContextManager[Any]:
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(inference))
            stack.enter_context(torch.set_grad_enabled(gradients))
            for kind, dtype in autocast.items():
                stack.enter_context(torch.autocast(kind, dtype=dtype, cache_enabled=cache))
            if stream := streams.get(device):
                stack.enter_context(devices.cuda.stream(stream))
            return stack.pop_all()

    return entered
