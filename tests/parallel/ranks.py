"""Start functions on the ranks of a process group, in processes of their own."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

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
    """Call functions of the rank, in order, on every rank.

    Args:
        functions: importable; each gets its rank.
        store: a path that does not exist yet, through which the ranks meet.
        timeout: seconds after which all ranks are killed.
        backend: of the default group.
        group_timeout: seconds that a collective of it may take.

    Returns:
        By rank, what the last function returned.

    Raises:
        AssertionError: a rank failed (with its traceback), died or was too slow.
    """
    listed = [functions] if callable(functions) else list(functions)
    groups = [
        Membership(backend, str(store), rank, world_size, group_timeout)
        for rank in range(world_size)
    ]
    with started(_rank_main, listed, groups, leave_seconds=2.0) as pipes:
        results, failures = answers(pipes, timeout)
    assert not failures, "\n".join(failures)
    return results


class Membership(NamedTuple):
    """How a process joins the default group."""

    backend: str
    store: str
    rank: int
    world_size: int
    timeout_seconds: float

    def join(self) -> None:
        """Join it."""
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        torch.set_num_threads(1)
        dist.init_process_group(
            self.backend,
            store=dist.FileStore(self.store, self.world_size),
            rank=self.rank,
            world_size=self.world_size,
            timeout=timedelta(seconds=self.timeout_seconds),
        )


@contextmanager
def started(
    main: Callable[[Any, Membership, Connection], None],
    task: Any,
    groups: Sequence[Membership],
    *,
    leave_seconds: float,
    duplex: bool = False,
) -> Iterator[list[Connection]]:
    """Run `main` with the task in a process for each membership; yields what they send through.
    With `duplex` they receive through it too.

    At the end the processes are killed, those that do not end by themselves within the time.
    """
    context = fork_server()
    processes, pipes = [], []
    for group in groups:
        ours, theirs = context.Pipe(duplex=duplex)
        processes.append(context.Process(target=main, args=(task, group, theirs), daemon=True))
        processes[-1].start()
        theirs.close()
        pipes.append(ours)
    try:
        yield pipes
    finally:
        for process, pipe in zip(processes, pipes, strict=True):
            process.join(timeout=leave_seconds)
            process.kill()
            process.join()
            process.close()
            pipe.close()


def answers(pipes: Sequence[Connection], seconds: float) -> tuple[list[Any], list[str]]:
    """Receive one `(error, result)` from each rank within the time: the results, and a line for
    each rank that failed, died or was too slow."""
    deadline = time.monotonic() + seconds
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
    return results, failures


def _rank_main(functions: list[Callable[..., Any]], group: Membership, pipe: Connection) -> None:
    try:
        group.join()
        result = None
        for function in functions:
            result = function(group.rank)
            dist.barrier()
        dist.destroy_process_group()
        pipe.send((None, result))
    except BaseException:
        pipe.send((traceback.format_exc(), None))
        # A destructor of the group might wait for the other ranks.
        os._exit(1)
