"""A rank that dies or stops: all others are told, on its host and on the other."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.parallel.shm.casualties import error_of, run_with_casualties, signal_soon

HOSTS = (0, 0, 1, 1)
TIMEOUT = 1.5


def _reduce_until_failure() -> None:
    tensor = torch.ones(1_000_000)
    while True:
        dist.all_reduce(tensor)


def _first_is_killed(rank: int) -> tuple[str, str]:
    return _one_is_killed(rank, 0)


def _second_is_killed(rank: int) -> tuple[str, str]:
    return _one_is_killed(rank, 1)


def _one_is_killed(rank: int, lost: int) -> tuple[str, str]:
    if rank == lost:
        signal_soon(signal.SIGKILL)
    return error_of(_reduce_until_failure), error_of(dist.barrier)


@pytest.mark.parametrize(
    ("function", "lost"), [(_first_is_killed, 0), (_second_is_killed, 1)], ids=["leader", "other"]
)
def test_a_rank_killed_within_an_all_reduce_is_an_error_on_both_hosts(
    tmp_path: Path, function: object, lost: int
) -> None:
    results = run_with_casualties(
        function,  # type: ignore[arg-type]
        tmp_path / "store",
        4,
        lost=lost,
        hosts=HOSTS,
    )
    neighbour = 1 - lost
    assert f"rank {lost} (pid" in results[neighbour][0]
    assert "has ended" in results[neighbour][0]
    for first, then in results.values():
        assert "all_reduce" in first or "did not arrive" in first
        assert "this 'shm+gloo' group can no longer be used" in then
    assert any("data from other hosts did not arrive" in results[rank][0] for rank in (2, 3))


def _stopped(rank: int) -> tuple[str, float]:
    if rank == 1:
        signal_soon(signal.SIGSTOP)
    start = time.monotonic()
    return error_of(_reduce_until_failure), time.monotonic() - start


def test_a_stopped_rank_is_an_error_on_both_hosts_within_the_timeout(tmp_path: Path) -> None:
    results = run_with_casualties(
        _stopped, tmp_path / "store", 4, group_timeout=TIMEOUT, hosts=HOSTS
    )
    assert "rank 1 (pid" in results[0][0]
    assert "is stopped" in results[0][0]
    for _, seconds in results.values():
        assert seconds < TIMEOUT + 10


def _mismatch(rank: int) -> str:
    return error_of(lambda: dist.all_reduce(torch.ones(4 + rank % 2)))


def test_a_mismatch_on_a_host_is_an_error_on_its_ranks(tmp_path: Path) -> None:
    for message in run_ranks_to_the_end(_mismatch, tmp_path / "store").values():
        assert "ranks disagree" in message


def run_ranks_to_the_end(function: object, store: Path) -> dict[int, str]:
    """Results of all four ranks, which do not meet again."""
    return run_with_casualties(function, store, 4, lost=-1, hosts=HOSTS)  # type: ignore[arg-type]
