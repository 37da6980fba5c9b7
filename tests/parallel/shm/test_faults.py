"""Ranks that die or leave within a collective: the others are told, in time."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from time import sleep
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.parallel.ranks import Ranks


def run(function: Callable[[int], Any], folder: Path, size: int) -> tuple[list[Any], list[str]]:
    with closing(Ranks(folder / "store", size, "shm")) as ranks:
        return ranks.call(function, 40.0, together=False)


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


def test_a_rank_killed_within_an_all_reduce_is_named(tmp_path: Path) -> None:
    results, failures = run(_killed_within_all_reduce, tmp_path, 3)
    assert failures == ["rank 1: died"]
    for first, then in filter(None, results):
        assert "all_reduce(SUM, 3000000 × torch.float32) cannot complete" in first
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
    (told, interrupted), failures = run(_interrupted_within_all_reduce, tmp_path, 2)
    assert not failures
    assert "was interrupted by KeyboardInterrupt" in interrupted
    assert "rank 1 (pid" in told
    assert "has left the group" in told
