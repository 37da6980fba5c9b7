"""Shares are summed and gathered alike, however the ranks exchange them."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from dpbench.parallel.ddp.comm_hooks import Exchange
from dpbench.parallel.sharded.shares import ShareExchange, Summands
from tests.parallel.ranks import run_ranks
from tests.parallel.shm.cases import same_bits

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


def test_a_sum_is_taken_piece_by_piece() -> None:
    for numel in (0, 1, 65_536, 65_537, 200_000):
        tensors = [torch.arange(numel, dtype=torch.float32) * factor for factor in (1, 3, 5)]
        expected = ((tensors[0] + tensors[1]) + tensors[2]) * 0.5
        Summands(tensors[0], tensors[1:]).add_up(0.5)
        assert torch.equal(tensors[0], expected)
