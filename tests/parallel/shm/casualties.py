"""Ranks of which some are killed or stopped, and what the others have to say about it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch.distributed as dist

from tests.parallel.ranks import Membership, started


def run_with_casualties(
    function: Callable[[int], Any],
    store: Path,
    world_size: int,
    *,
    lost: int = 1,
    group_timeout: float = 20.0,
    backend: str = "shm",
) -> dict[int, Any]:
    """Call a function of the rank on every rank of a group, one of which will not come back.

    Args:
        function: importable.
        store: a path that does not exist yet.
        world_size: ranks.
        lost: the rank that nothing is expected from.
        group_timeout: of the group, in seconds.
        backend: of the group.

    Returns:
        By rank, what the others returned.
    """
    groups = [
        Membership(backend, str(store), rank, world_size, group_timeout)
        for rank in range(world_size)
    ]
    with started(_main, function, groups, leave_seconds=0.0) as pipes:
        results = {}
        for rank, pipe in enumerate(pipes):
            if rank != lost:
                assert pipe.poll(40), f"rank {rank} hangs"
                results[rank] = pipe.recv()
        return results


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


def _main(function: Callable[[int], Any], group: Membership, pipe: Connection) -> None:
    group.join()
    dist.barrier()  # nobody dies while another is still joining
    pipe.send(function(group.rank))
    os._exit(0)
