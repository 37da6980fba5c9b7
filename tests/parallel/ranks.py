"""Processes that are the ranks of a process group, and call functions of their rank."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dpbench.launch.fork_server import fork_server


def run_ranks(
    functions: Callable[..., Any] | Sequence[Callable[..., Any]],
    store: Path,
    world_size: int = 2,
    timeout: float = 40.0,
    *,
    backend: str = "gloo",
    group_timeout: float = 15.0,
) -> list[Any]:
    """Call importable functions of the rank, in order, on every rank, and kill the ranks after
    `timeout` seconds.

    Returns what the last function returned, by rank; raises AssertionError if a rank failed (with
    its traceback), died or was too slow.
    """
    results: list[Any] = []
    deadline = time.monotonic() + timeout
    with closing(Ranks(store, world_size, backend, group_timeout)) as ranks:
        for function in [functions] if callable(functions) else functions:
            results, failures = ranks.call(function, deadline - time.monotonic())
            assert not failures, "\n".join(failures)
    return results


class Ranks:
    """The ranks of one group, until it is closed or one of them has failed."""

    def __init__(
        self, store: Path, size: int, backend: str, group_timeout: float = 15.0, leave: float = 2.0
    ) -> None:
        """
        Args:
            store: a path that does not exist yet, through which the ranks meet.
            size: their number.
            backend: of the default group.
            group_timeout: seconds that a collective of it may take.
            leave: seconds after which ranks are killed that do not end when it is closed.
        """
        self._leave = leave
        self._pipes: list[Connection] = []
        self._processes = []
        context = fork_server()
        for rank in range(size):
            ours, theirs = context.Pipe()
            group = (backend, str(store), rank, size, group_timeout)
            self._processes.append(context.Process(target=_main, args=(theirs, *group)))
            self._processes[-1].daemon = True
            self._processes[-1].start()
            theirs.close()
            self._pipes.append(ours)

    def call(
        self, function: Callable[..., Any], seconds: float, *, lost: int | None = None
    ) -> tuple[list[Any], list[str]]:
        """What the ranks return, and a line for each rank that failed, died or was too slow.

        Nothing is expected from the rank `lost`; with one, ranks end after the function, and do not
        wait for each other.
        """
        for pipe in self._pipes:
            with suppress(OSError):  # it has died; the answer says so
                pipe.send((function, lost is None))
        deadline = time.monotonic() + seconds
        results, failures = [], []
        for rank, pipe in enumerate(self._pipes):
            if rank == lost:
                continue
            if not pipe.poll(max(0.0, deadline - time.monotonic())):
                failures.append(f"rank {rank} was too slow")
                continue
            try:
                error, result = pipe.recv()
            except EOFError:
                error, result = "died", None
            results.append(result)
            if error:
                failures.append(f"rank {rank}: {error}")
        return results, failures

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.close()  # at which a rank ends that runs no function
        for process in self._processes:
            process.join(timeout=self._leave)
            process.kill()
            process.join()
            process.close()


def _main(
    pipe: Connection, backend: str, store: str, rank: int, size: int, timeout_seconds: float
) -> None:
    """Join the group and call what comes through the pipe."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group(
        backend,
        store=dist.FileStore(store, size),
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=timeout_seconds),
    )
    dist.barrier()  # nobody dies while another is still joining
    while True:
        try:
            function, together = pipe.recv()
        except EOFError:
            os._exit(0)  # destructors of the group might wait for the other ranks
        try:
            result = function(rank)
            if together:
                dist.barrier()
            pipe.send((None, result))
            if not together:
                os._exit(0)
        except BaseException:
            pipe.send((traceback.format_exc(), None))
            os._exit(1)


def model(seed: int = 0) -> nn.Module:
    """Layers with parameters and buffers."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
