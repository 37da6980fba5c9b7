"""Start functions on the ranks of a process group, in processes of their own."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dpbench.launch.server import fork_server
from tests.parallel.hosts.stand_in import pretend_host


def run_ranks(
    functions: Callable[..., Any] | Sequence[Callable[..., Any]],
    store: Path,
    world_size: int = 2,
    timeout: float = 40.0,
    *,
    backend: str = "gloo",
    group_timeout: float = 15.0,
    hosts: Sequence[int] = (),
) -> list[Any]:
    """Call functions of the rank, in order, on every rank.

    Args:
        functions: importable; each gets its rank.
        store: a path that does not exist yet, through which the ranks meet.
        timeout: seconds after which all ranks are killed.
        backend: of the default group.
        group_timeout: seconds that a collective of it may take.
        hosts: by rank, the host that it is to say it is on; empty for the host it is on.

    Returns:
        By rank, what the last function returned.

    Raises:
        AssertionError: a rank failed (with its traceback), died or was too slow.
    """
    listed = [functions] if callable(functions) else list(functions)
    context = fork_server()
    ranks, pipes = [], []
    for rank in range(world_size):
        ours, theirs = context.Pipe(duplex=False)
        host = hosts[rank] if hosts else None
        process = context.Process(
            target=_rank_main,
            args=(listed, rank, world_size, str(store), theirs, backend, group_timeout, host),
            daemon=True,
        )
        process.start()
        theirs.close()
        ranks.append(process)
        pipes.append(ours)
    try:
        return _results(pipes, time.monotonic() + timeout)
    finally:
        for process, pipe in zip(ranks, pipes, strict=True):
            process.join(timeout=2)
            process.kill()
            process.join()
            process.close()
            pipe.close()


def _results(pipes: list[Connection], deadline: float) -> list[Any]:
    results, failures = [], []
    for rank, pipe in enumerate(pipes):
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
    assert not failures, "\n".join(failures)
    return results


def _rank_main(
    functions: list[Callable[..., Any]],
    rank: int,
    size: int,
    store: str,
    pipe: Connection,
    backend: str,
    group_timeout: float,
    host: int | None,
) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    if host is not None:
        pretend_host(host)
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            backend,
            store=dist.FileStore(store, size),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=group_timeout),
        )
        result = None
        for function in functions:
            result = function(rank)
            dist.barrier()
        dist.destroy_process_group()
        pipe.send((None, result))
    except BaseException:
        pipe.send((traceback.format_exc(), None))
        # A destructor of the group might wait for the other ranks.
        os._exit(1)
