"""Ranks of which some are killed or stopped, and what the others have to say about it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import dpbench
from dpbench.launch.server import fork_server
from tests.parallel.hosts.stand_in import pretend_host

assert dpbench  # for the backend


def run_with_casualties(
    function: Callable[[int], Any],
    store: Path,
    world_size: int,
    *,
    lost: int = 1,
    group_timeout: float = 20.0,
    hosts: Sequence[int] = (),
    backend: str | None = None,
) -> dict[int, Any]:
    """Call a function of the rank on every rank of a group, one of which will not come back.

    The group is one of `backend`, by default shm, or shm+gloo if `hosts` are given.

    Args:
        function: importable.
        store: a path that does not exist yet.
        world_size: ranks.
        lost: the rank that nothing is expected from.
        group_timeout: of the group, in seconds.
        hosts: by rank, the host that it is to say it is on.
        backend: of the group.

    Returns:
        By rank, what the others returned.
    """
    context = fork_server()
    processes, pipes = [], []
    backend = backend or ("shm+gloo" if hosts else "shm")
    for rank in range(world_size):
        ours, theirs = context.Pipe(duplex=False)
        host = hosts[rank] if hosts else None
        arguments = (function, rank, world_size, str(store), theirs, group_timeout, host, backend)
        processes.append(context.Process(target=_main, args=arguments, daemon=True))
        processes[-1].start()
        theirs.close()
        pipes.append(ours)
    try:
        results = {}
        for rank, pipe in enumerate(pipes):
            if rank != lost:
                assert pipe.poll(40), f"rank {rank} hangs"
                results[rank] = pipe.recv()
        return results
    finally:
        for process, pipe in zip(processes, pipes, strict=True):
            process.kill()
            process.join()
            pipe.close()


def error_of(call: Callable[[], Any]) -> str:
    """The message of the error that a call must end in."""
    try:
        call()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("no error")


def signal_soon(number: signal.Signals) -> None:
    """Send this process a signal while it does something else."""

    def strike() -> None:
        time.sleep(0.1)
        os.kill(os.getpid(), number)

    threading.Thread(target=strike, daemon=True).start()


def _main(
    function: Callable[[int], Any],
    rank: int,
    size: int,
    store: str,
    pipe: Connection,
    limit: float,
    host: int | None,
    backend: str,
) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    if host is not None:
        pretend_host(host)
    dist.init_process_group(
        backend,
        store=dist.FileStore(store, size),
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=limit),
    )
    pipe.send(function(rank))
    os._exit(0)
