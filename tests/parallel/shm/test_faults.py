"""Ranks that die, stop, leave or do something else: the others are told, in time."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from time import sleep
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.parallel.ranks import Ranks


def run_with_loss(
    function: Callable[[int], Any], folder: Path, size: int, lost: int = 1
) -> list[Any]:
    """What the ranks of a group of shm return, except `lost`, of which nothing is expected."""
    with closing(Ranks(folder / "store", size, "shm")) as ranks:
        results, failures = ranks.call(function, 40.0, lost=lost)
    assert not failures, "\n".join(failures)
    return results


def error_of(call: Callable[[], Any]) -> str:
    """The message of the error in which a call must end."""
    with pytest.raises(RuntimeError) as caught:
        call()
    return str(caught.value)


def signal_soon(number: signal.Signals) -> None:
    """Send this process a signal while it does something else."""
    threading.Timer(0.1, os.kill, (os.getpid(), number)).start()


def _reduce_until_failure() -> None:
    tensor = torch.ones(3_000_000)
    while True:
        dist.all_reduce(tensor)


def _killed_within_all_reduce(rank: int) -> tuple[str, str]:
    if rank == 1:
        signal_soon(signal.SIGKILL)
    return error_of(_reduce_until_failure), error_of(dist.barrier)


@pytest.mark.parametrize("size", [2, 3])
def test_a_rank_killed_within_an_all_reduce_is_named(tmp_path: Path, size: int) -> None:
    for first, then in run_with_loss(_killed_within_all_reduce, tmp_path, size):
        assert "all_reduce cannot complete" in first
        assert "rank 1 (pid" in first
        assert "has ended" in first
        assert first in then
        assert "can no longer be used" in then


def _interrupted_within_all_reduce(rank: int) -> str:
    if rank == 0:
        sleep(1.0)  # so that rank 1 waits within its first all_reduce, and not between two
        return error_of(_reduce_until_failure)
    # The server that forked this process has blocked it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal_soon(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        _reduce_until_failure()
    return error_of(dist.barrier)


def test_an_interrupted_rank_leaves_and_the_others_are_told(tmp_path: Path) -> None:
    told, interrupted = run_with_loss(_interrupted_within_all_reduce, tmp_path, 2, lost=-1)
    assert "was interrupted by KeyboardInterrupt" in interrupted
    assert "rank 1 (pid" in told
    assert "has left the group" in told


def _asks_for_too_short_a_time(rank: int) -> str:
    if rank == 1:
        sleep(60)
    options = dist.BarrierOptions()
    options.timeout = timedelta(seconds=0.2)
    return error_of(lambda: dist.group.WORLD.barrier(options).wait())


def test_the_timeout_of_a_call_counts(tmp_path: Path) -> None:
    [message] = run_with_loss(_asks_for_too_short_a_time, tmp_path, 2)
    assert message.startswith("barrier: Timed out waiting 200ms for rank 1")
