"""Ranks that read each other's memory wait for each other, neither too little nor too often."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from dpbench.parallel import ShardedOptimizer
from dpbench.parallel.sharded.memory import Meetings, MemoryShares
from dpbench.parallel.sharded.shares import Summands
from tests.parallel.ranks import run_ranks
from tests.parallel.sharded.test_optimizer import Reference, assert_same, loss, wrapped
from tests.parallel.shm.casualties import error_of, run_with_casualties

LATE_SECONDS = 0.2


class Late(list[Any]):
    """What a rank reads, when the others have long gone on."""

    def __iter__(self) -> Iterator[Any]:
        time.sleep(LATE_SECONDS)
        return super().__iter__()


def _read_late(optimizer: ShardedOptimizer) -> None:
    for share in optimizer._shares:
        for shares in (share.bucket._gradient_shares, share.bucket._value_shares):
            assert isinstance(shares, MemoryShares)
            shares._copies = Late(shares._copies)
            shares._summands._pieces = Late(shares._summands._pieces)


def _a_slow_reader_gets_what_was_stepped(rank: int) -> None:
    size = dist.get_world_size()
    for slow in range(size):
        model, optimizer = wrapped()
        reference = Reference()
        if rank == slow:
            _read_late(optimizer)
        loss(model, 0, rank).backward()
        optimizer.step()
        reference.step(0)
        kept = [parameter.detach().clone() for parameter in model.parameters()]
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(float("nan"))
            for parameter, value in zip(model.parameters(), kept, strict=True):
                parameter.copy_(value)
        assert_same(model, reference)


def _a_slow_reader_gets_the_gradients_that_were_meant(rank: int) -> None:
    for slow in range(dist.get_world_size()):
        model, optimizer = wrapped()
        reference = Reference()
        if rank == slow:
            _read_late(optimizer)
        for seed in (0, 10):
            for part in range(3):  # each reduces, and the step comes later
                loss(model, seed + part, rank).backward()
            optimizer.step()
            reference.optimizer.zero_grad()
            for part in range(3):
                reference.add_gradients(seed + part)
            reference.optimizer.step()
            assert_same(model, reference)


def _dropped_gradients_leave_no_trace(rank: int) -> None:
    model, optimizer = wrapped()
    reference = Reference()
    if rank == 0:
        _read_late(optimizer)
    for seed in range(3):
        loss(model, seed + 50, rank).backward()
        optimizer.zero_grad()
        loss(model, seed, rank).backward()
        optimizer.step()
        reference.step(seed)
    assert_same(model, reference)


def _a_step_has_three_meetings(rank: int) -> None:
    model, optimizer = wrapped(bucket_cap_mb=1e-4)
    assert len(optimizer._shares) > 2
    met: list[int] = []
    meet = Meetings._meet

    def counted(meetings: Meetings) -> None:
        met.append(1)
        meet(meetings)

    with patch.object(Meetings, "_meet", counted):
        for seed in range(4):
            optimizer.zero_grad()
            loss(model, seed, rank).backward()
            assert len(met) == 3 * seed + 1
            optimizer.step()
            assert len(met) == 3 * seed + 3


CASES = [
    _a_slow_reader_gets_what_was_stepped,
    _a_slow_reader_gets_the_gradients_that_were_meant,
    _dropped_gradients_leave_no_trace,
    _a_step_has_three_meetings,
]


@pytest.mark.parametrize("ranks", [2, 3])
def test_slow_ranks_read_what_they_should(tmp_path: Path, ranks: int) -> None:
    run_ranks(CASES, tmp_path / "store", ranks, backend="shm", timeout=90)


def _killed_in_training(rank: int) -> list[str]:
    model, optimizer = wrapped()
    loss(model, 0, rank).backward()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return [error_of(optimizer.step), error_of(lambda: loss(model, 1, rank).backward())]


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_rank_that_dies_between_backward_and_step_is_named(tmp_path: Path, ranks: int) -> None:
    for first, then in run_with_casualties(_killed_in_training, tmp_path / "store", ranks).values():
        assert "rank 1 (pid" in first
        assert "has ended" in first
        assert "can no longer be used" in then


def test_a_sum_is_taken_piece_by_piece() -> None:
    for numel in (0, 1, 65_536, 65_537, 200_000):
        tensors = [torch.arange(numel, dtype=torch.float32) * factor for factor in (1, 3, 5)]
        expected = ((tensors[0] + tensors[1]) + tensors[2]) * 0.5
        Summands(tensors[0], tensors[1:]).add_up(0.5)
        assert torch.equal(tensors[0], expected)
