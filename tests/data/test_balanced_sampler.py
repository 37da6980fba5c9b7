from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import dpbench
from dpbench.data.balanced_sampler import BalancedSampler
from dpbench.errors import UsageError

quick = settings(max_examples=80, deadline=None)


@st.composite
def sizes(draw: st.DrawFn) -> tuple[int, int]:
    world_size = draw(st.integers(1, 9))
    return draw(st.integers(world_size, 120)), world_size


def of_all_ranks(dataset_size: int, world_size: int, **options: Any) -> list[list[int]]:
    samplers = [
        BalancedSampler(dataset_size, rank=rank, world_size=world_size, **options)
        for rank in range(world_size)
    ]
    assert [len(sampler) for sampler in samplers] == [len(list(sampler)) for sampler in samplers]
    return [list(sampler) for sampler in samplers]


@quick
@given(sizes(), st.booleans())
def test_all_ranks_together_have_every_sample_once_and_sizes_differ_by_one_at_most(
    size: tuple[int, int], shuffle: bool
) -> None:
    parts = of_all_ranks(*size, shuffle=shuffle)
    assert sorted(i for part in parts for i in part) == list(range(size[0]))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@quick
@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=6), st.integers(0, 100))
def test_shares_divide_the_dataset_too(shares: list[float], more: int) -> None:
    total = len(shares) + more
    parts = of_all_ranks(total, len(shares), shares=shares)
    assert sorted(i for part in parts for i in part) == list(range(total))


@pytest.mark.parametrize(
    ("dataset_size", "world_size", "lengths"),
    [(100, 4, [25] * 4), (10, 4, [3, 3, 2, 2]), (7, 3, [3, 2, 2]), (60_000, 7, [8572] * 3)],
)
def test_sizes_worked_by_hand(dataset_size: int, world_size: int, lengths: list[int]) -> None:
    parts = of_all_ranks(dataset_size, world_size, shuffle=False)
    assert [len(part) for part in parts][: len(lengths)] == lengths
    assert parts[0] == list(range(lengths[0]))
    assert parts[1][0] == lengths[0]


def test_set_epoch_changes_the_whole_order_and_the_seed_reproduces_it() -> None:
    def order(epoch: int, seed: int) -> list[int]:
        sampler = BalancedSampler(100, rank=1, world_size=2, seed=seed)
        sampler.set_epoch(epoch)
        return list(sampler)

    assert order(0, 0) == order(0, 0)
    assert set(order(0, 0)) != set(order(1, 0))
    assert set(order(0, 0)) != set(order(0, 1))


def test_it_feeds_torchs_data_loader() -> None:
    sampler = dpbench.BalancedSampler(10, rank=0, world_size=2, shares=(2.0, 1.0), shuffle=False)
    batches = [batch.tolist() for batch in DataLoader(torch.arange(10), 3, sampler=sampler)]
    assert batches == [[0, 1, 2], [3, 4, 5], [6]]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rank": 2}, "rank: got 2, expected 0 to 1"),
        ({"rank": -1}, "rank: got -1, expected 0 to 1"),
        ({"world_size": 0}, "world_size: got 0, expected at least 1"),
        ({"dataset_size": 1}, "got 1 sample for 2 ranks"),
        ({"shares": (1.0,)}, "shares: got 1 for 2 ranks; expected one for each"),
        ({"shares": (1.0, 0.0)}, r"shares: got 1\.0, 0\.0"),
        ({"seed": -1}, "seed: got -1"),
    ],
)
def test_arguments_that_cannot_be_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        BalancedSampler(**({"dataset_size": 10, "rank": 0, "world_size": 2} | changed))


def test_an_epoch_below_zero_is_refused() -> None:
    with pytest.raises(UsageError, match="epoch: got -1"):
        BalancedSampler(10, rank=0, world_size=2).set_epoch(-1)
