"""One persistent thread per replica: run a job in each, wait for all, raise the first failure."""

from __future__ import annotations

import threading
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import Any

import torch

Job = Callable[[], Any]
_PARALLEL_ELEMENTS = 2**17
"""Enough for torch to write them with two threads."""


class _Task:
    """A job for a worker, then its result or its failure."""

    __slots__ = ("error", "finished", "job", "result", "trace")

    def __init__(self, job: Job) -> None:
        self.job: Job | None = job
        self.result: Any = None
        self.error: BaseException | None = None
        self.trace = ""
        self.finished = threading.Lock()  # a lock is the cheapest one-shot event
        self.finished.acquire()

    def run(self) -> None:
        assert self.job is not None
        try:
            self.result = self.job()
        except BaseException as error:
            self.trace = traceback.format_exc()
            # Drop the frames, which would keep the replica's tensors alive.
            self.error = error.with_traceback(None)
        finally:
            self.job = None
            self.finished.release()


class _Worker:
    """A daemon thread that runs tasks in the order they come; None ends it."""

    def __init__(self, name: str, threads: int | None) -> None:
        self.tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self.thread = threading.Thread(
            target=_serve, args=(self.tasks, threads), name=name, daemon=True
        )
        self.thread.start()


def _serve(tasks: SimpleQueue[_Task | None], threads: int | None) -> None:
    if threads is not None:
        _shorten_spinning()
        torch.set_num_threads(threads)
    while (task := tasks.get()) is not None:
        task.run()
        del task  # otherwise its result would live until the next task


def _shorten_spinning() -> None:
    """Give this thread an OpenMP thread of its own, so that idle ones soon leave the cores.

    After each operation that the caller ran on several threads, such as the optimizer's, these spin
    for milliseconds on the cores that the replicas need: a small step took 1.6 times the processor
    time. GNU's OpenMP shortens that a thousandfold while it has more threads than there are cores.
    """
    torch.set_num_threads(2)
    torch.zeros(_PARALLEL_ELEMENTS)


def _stop(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.tasks.put(None)
    for worker in workers:
        # The garbage collector may run this in a worker, which cannot join itself.
        if worker.thread is not threading.current_thread():
            worker.thread.join(timeout=5.0)
    workers.clear()


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
            devices: the device of each worker.
            threads_per_replica: intra-op threads of each CPU worker; None divides the caller's
                evenly. The limit applies to the worker's thread only.

        Raises:
            TypeError, ValueError: threads_per_replica is no int or less than 1.
        """
        if threads_per_replica is not None:
            _check_threads(threads_per_replica)
        self.devices = tuple(devices)
        self.threads_per_replica = threads_per_replica
        self._workers: list[_Worker] = []
        self._starting = threading.Lock()  # replicas of a wrapper around this one share the pool
        weakref.finalize(self, _stop, self._workers)

    def __reduce__(self) -> tuple[Any, ...]:
        return WorkerPool, (self.devices, self.threads_per_replica)

    def close(self) -> None:
        """End the threads; the next `run` starts new ones."""
        _stop(self._workers)

    def run(self, jobs: Mapping[int, Job]) -> dict[int, Any]:
        """Run each job in the worker of its index and wait for all of them.

        Jobs given by a job run in its own thread, since its worker would wait for itself.

        Raises:
            The failure with the lowest index, with the message "Caught {type} in replica {index} on
            device {device}." and the traceback; of the same type if that can be made from a
            message.
        """
        with self._starting:
            self._start()
        tasks = {index: _Task(job) for index, job in jobs.items()}
        inside = threading.current_thread() in [worker.thread for worker in self._workers]
        for index, task in tasks.items():
            if inside:
                task.run()
            else:
                self._workers[index].tasks.put(task)
        for task in tasks.values():
            task.finished.acquire()
        for index, task in sorted(tasks.items()):
            if task.error is not None:
                raise caught(task.error, index, self.devices[index], task.trace) from None
        return {index: task.result for index, task in tasks.items()}

    def _start(self) -> None:
        # After a fork the threads are gone, and their jobs would wait forever.
        if self._workers and all(worker.thread.is_alive() for worker in self._workers):
            return
        _stop(self._workers)
        # torch.set_num_threads affects one thread only after the caller's count was initialised.
        total = torch.get_num_threads()
        on_cpu = sum(device.type == "cpu" for device in self.devices)
        for index, device in enumerate(self.devices):
            limit = self.threads_per_replica or max(1, total // max(1, on_cpu))
            name = f"dpbench-replica-{index}"
            self._workers.append(_Worker(name, limit if device.type == "cpu" else None))


def _check_threads(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"got threads_per_replica={value!r}, expected an int")
    if value < 1:
        raise ValueError(f"got threads_per_replica={value}, expected 1 or more")


def caught(error: BaseException, index: int, device: torch.device, trace: str) -> BaseException:
    """A replica's failure to raise in the caller: the same type, with replica, device and
    traceback."""
    kind = type(error)
    text = f"Caught {kind.__name__} in replica {index} on device {device}.\n{trace}"
    try:
        return kind(text)
    except Exception:  # the type needs other arguments
        return RuntimeError(text)
