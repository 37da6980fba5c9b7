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
) -> list[Any]:
    """Call importable functions of the rank, in order, on every rank, and kill the ranks after
    `timeout` seconds.

    Returns what the last function returned, by rank; raises AssertionError if a rank failed (with
    its traceback), died or was too slow.
    """
    results: list[Any] = []
    deadline = time.monotonic() + timeout
    with closing(Ranks(store, world_size, backend)) as ranks:
        for function in [functions] if callable(functions) else functions:
            results, failures = ranks.call(function, deadline - time.monotonic())
            assert not failures, "\n".join(failures)
    return results


class Ranks:
    """The ranks of one group, until it is closed or one of them has failed."""

    def __init__(self, store: Path, size: int, backend: str) -> None:
        """Start processes that meet through `store`, a path that does not exist yet."""
        self._pipes: list[Connection] = []
        self._processes = []
        context = fork_server()
        for rank in range(size):
            ours, theirs = context.Pipe()
            arguments = (theirs, backend, str(store), rank, size)
            self._processes.append(context.Process(target=_main, args=arguments, daemon=True))
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
            process.join(timeout=1.0)
            process.kill()
            process.join()
            process.close()


def _main(pipe: Connection, backend: str, path: str, rank: int, size: int) -> None:
    """Join the group and call what comes through the pipe."""
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "TEMP_DIR": str(Path(path).parent)}
    torch.set_num_threads(1)
    store, timeout = dist.FileStore(path, size), timedelta(seconds=20)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
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
