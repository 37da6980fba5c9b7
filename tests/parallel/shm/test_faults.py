"""Ranks that die, stop, leave or do something else: the others are told, in time."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from dpbench.parallel.shm import zeros
from tests.parallel.shm.casualties import error_of, run_with_casualties, signal_soon

TIMEOUT = 4.0


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
    for first, then in run_with_casualties(
        _killed_within_all_reduce, tmp_path / "store", size
    ).values():
        assert "all_reduce cannot complete" in first
        assert "rank 1 (pid" in first
        assert "has ended" in first
        assert first in then
        assert "can no longer be used" in then


def _stopped_within_all_reduce(rank: int) -> tuple[str, float]:
    if rank == 1:
        signal_soon(signal.SIGSTOP)
    start = time.monotonic()
    return error_of(_reduce_until_failure), time.monotonic() - start


def test_a_stopped_rank_is_named_within_the_timeout(tmp_path: Path) -> None:
    results = run_with_casualties(
        _stopped_within_all_reduce, tmp_path / "store", 3, group_timeout=TIMEOUT
    )
    for message, seconds in results.values():
        assert "rank 1 (pid" in message
        assert seconds < TIMEOUT + 30


def _interrupted_within_all_reduce(rank: int) -> str:
    if rank == 0:
        return error_of(_reduce_until_failure)
    # The server that forked this process has blocked it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal_soon(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        _reduce_until_failure()
    return error_of(dist.barrier)


def test_an_interrupted_rank_leaves_and_the_others_are_told(tmp_path: Path) -> None:
    told, interrupted = run_with_casualties(
        _interrupted_within_all_reduce, tmp_path / "store", 2, lost=-1
    ).values()
    assert "was interrupted by KeyboardInterrupt" in interrupted
    assert "rank 1 (pid" in told
    assert "has left the group" in told


def _asks_for_too_short_a_time(rank: int) -> str:
    if rank == 1:
        time.sleep(60)
    options = dist.BarrierOptions()
    options.timeout = timedelta(seconds=0.2)
    return error_of(lambda: dist.group.WORLD.barrier(options).wait())


def test_the_timeout_of_a_call_counts(tmp_path: Path) -> None:
    [message] = run_with_casualties(_asks_for_too_short_a_time, tmp_path / "s", 2).values()
    assert message.startswith("barrier: Timed out waiting 200ms for rank 1")


def _leaves_nothing(rank: int) -> list[Path]:
    before = set(Path("/dev/shm").iterdir())
    tensor = zeros(dist.group.WORLD, 1_000_000, torch.float32, torch.device("cpu"))
    dist.all_reduce(tensor)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    error_of(dist.barrier)
    return sorted(set(Path("/dev/shm").iterdir()) - before)


@pytest.mark.alone
def test_nothing_has_a_name_that_could_stay(tmp_path: Path) -> None:
    [named] = run_with_casualties(_leaves_nothing, tmp_path / "store", 2).values()
    assert named == []
