"""Shares are summed and gathered alike, however the ranks exchange them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from dpbench.parallel import ShardedOptimizer
from dpbench.parallel.ddp.comm_hooks import Exchange
from dpbench.parallel.sharded.shares import (
    LEAST_MESSAGE_BYTES,
    Meetings,
    MemoryShares,
    ShareExchange,
    Summands,
)
from tests.parallel.ranks import run_ranks
from tests.parallel.sharded.test_optimizer import Reference, assert_same, loss, wrapped
from tests.parallel.shm.cases import same_bits
from tests.parallel.shm.casualties import error_of, run_with_casualties

CPU = torch.device("cpu")
SIZES = (0, 1, 3, 70_001)
"""Of a share, in elements; the last is longer than a piece that is added up at a time."""
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.complex64)
LATE_SECONDS = 0.05


def _given(rank: int, numel: int, dtype: torch.dtype) -> Tensor:
    """Small whole numbers, whose sum is the same in any order."""
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(-8, 9, (numel,), generator=generator).to(dtype)


def sums_and_gathers_are_exact(rank: int) -> None:
    exchange = ShareExchange(Exchange(dist.group.WORLD, CPU), CPU)
    size = exchange.size
    for share, dtype, scale in product(SIZES, DTYPES, (1.0, 1 / size)):
        shares = exchange.zeros(share * size, dtype, CPU)
        assert not shares.flat.any()
        given = [_given(peer, share * size, dtype) for peer in range(size)]
        for _ in range(2):
            shares.flat.copy_(given[rank])
            shares.reduce(scale, average=False)()
            expected = sum(given[1:], given[0])[rank * share : (rank + 1) * share] * scale
            assert same_bits(shares.own, expected)
            exchange.settle()
        for _ in range(2):
            shares.own.copy_(given[rank][:share])
            shares.gather()()
            assert same_bits(shares.flat, torch.cat([one[:share] for one in given]))
            exchange.settle()


def any_tensor_can_be_gathered(rank: int) -> None:
    exchange = ShareExchange(Exchange(dist.group.WORLD, CPU), CPU)
    flat = torch.full((exchange.size * 5,), float(rank))
    exchange.over(flat).gather()()
    assert flat.tolist() == [float(peer) for peer in range(exchange.size) for _ in range(5)]


CASES = [sums_and_gathers_are_exact, any_tensor_can_be_gathered]


@pytest.mark.parametrize(
    ("ranks", "backend"),
    [(1, "gloo"), (2, "gloo"), (4, "gloo"), (2, "shm"), (3, "shm"), (4, "shm")],
)
def test_shares_are_exact(tmp_path: Path, ranks: int, backend: str) -> None:
    run_ranks(CASES, tmp_path / "store", ranks, backend=backend)


@pytest.mark.parametrize("backend", ["shm+gloo", "gloo"])
def test_ranks_that_count_as_on_two_hosts_exchange_shares_too(tmp_path: Path, backend: str) -> None:
    run_ranks(CASES, tmp_path / "store", 3, backend=backend, hosts=(0, 1, 0))


def long_shares_cross_in_several_messages(rank: int) -> None:
    """Rank 1 is on a host of its own."""
    exchange = ShareExchange(Exchange(dist.group.WORLD, CPU), CPU)
    for messages, numel in ((8, LEAST_MESSAGE_BYTES * 3 + 1), (1, LEAST_MESSAGE_BYTES // 4)):
        shares = exchange.zeros(3 * numel, torch.float32, CPU)
        shares.own.fill_(rank + 1)
        with patch.object(dist, "isend", wraps=dist.isend) as sent:
            shares.gather()()
        expected = torch.arange(1.0, 4.0).repeat_interleave(numel)
        assert torch.equal(shares.flat, expected)
        far = [peer for peer in range(3) if (peer == 1) != (rank == 1)]
        assert len(sent.mock_calls) == len(far) * messages + 2 - len(far)


def test_only_between_hosts_long_shares_cross_in_several_messages(tmp_path: Path) -> None:
    run_ranks(long_shares_cross_in_several_messages, tmp_path / "store", 3, hosts=(0, 1, 0))


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


LATE_CASES = [
    _a_slow_reader_gets_what_was_stepped,
    _a_slow_reader_gets_the_gradients_that_were_meant,
    _dropped_gradients_leave_no_trace,
    _a_step_has_three_meetings,
]


@pytest.mark.parametrize("ranks", [2, 3])
def test_slow_ranks_read_what_they_should(tmp_path: Path, ranks: int) -> None:
    run_ranks(LATE_CASES, tmp_path / "store", ranks, backend="shm", timeout=90)


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
