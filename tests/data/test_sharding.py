"""Which samples a rank takes: orders, shares, global batches, and a sampler for DataLoader."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import dpbench
from dpbench.data.sharding import (
    BalancedSampler,
    GlobalBatchSampler,
    permutation,
)
from dpbench.errors import DataError, UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """A dataset, a global batch, and the sizes of the ranks' parts of it."""

    dataset_size: int
    parts: tuple[int, ...]
    seed: int

    @property
    def global_batch_size(self) -> int:
        return sum(self.parts)

    @property
    def steps_of_whole_epochs(self) -> int:
        """The fewest steps that consume a whole number of epochs."""
        return self.dataset_size // math.gcd(self.dataset_size, self.global_batch_size)

    def samplers(self) -> list[GlobalBatchSampler]:
        firsts = accumulate(self.parts[:-1], initial=0)
        return [
            GlobalBatchSampler(
                self.dataset_size, self.global_batch_size, first=first, count=count, seed=self.seed
            )
            for first, count in zip(firsts, self.parts, strict=True)
        ]

    def global_batches(self, steps: int) -> list[list[int]]:
        """The parts of all ranks put together again, step by step."""
        ranks = [sampler.batches(0, steps) for sampler in self.samplers()]
        return [torch.cat(parts).tolist() for parts in zip(*ranks, strict=True)]


@st.composite
def splits(draw: st.DrawFn) -> Split:
    parts = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    dataset_size = draw(st.integers(sum(parts), 40))
    return Split(dataset_size=dataset_size, parts=tuple(parts), seed=draw(st.integers(0, 1000)))


quick = settings(max_examples=100, deadline=None)


@quick
@given(splits())
def test_whole_epochs_consume_each_sample_equally_often(split: Split) -> None:
    steps = split.steps_of_whole_epochs
    consumed = [i for batch in split.global_batches(steps) for i in batch]
    epochs = steps * split.global_batch_size // split.dataset_size
    assert sorted(consumed) == sorted(list(range(split.dataset_size)) * epochs)


@quick
@given(splits())
def test_within_an_epoch_no_sample_comes_twice_on_any_rank(split: Split) -> None:
    consumed = [i for batch in split.global_batches(split.steps_of_whole_epochs) for i in batch]
    for start in range(0, len(consumed), split.dataset_size):
        epoch = consumed[start : start + split.dataset_size]
        assert len(set(epoch)) == split.dataset_size


@quick
@given(splits())
def test_every_group_size_consumes_the_same_global_batches(split: Split) -> None:
    alone = Split(
        dataset_size=split.dataset_size, parts=(split.global_batch_size,), seed=split.seed
    )
    assert split.global_batches(7) == alone.global_batches(7)


@quick
@given(splits())
def test_the_same_seed_gives_the_same_stream(split: Split) -> None:
    assert split.global_batches(7) == split.global_batches(7)


@quick
@given(splits(), st.integers(0, 12), st.integers(0, 12))
def test_batches_from_a_later_step_are_a_slice_of_all_batches(
    split: Split, start: int, steps: int
) -> None:
    for sampler, again in zip(split.samplers(), split.samplers(), strict=True):
        later = sampler.batches(start, steps)
        expected = again.batches(0, start + steps)[start:]
        assert [batch.tolist() for batch in later] == [batch.tolist() for batch in expected]


def test_batches_are_int64_tensors_of_the_ranks_count() -> None:
    sampler = GlobalBatchSampler(10, 4, first=1, count=3, seed=0)
    batches = sampler.batches(0, 5)
    assert [(batch.shape, batch.dtype) for batch in batches] == [((3,), torch.int64)] * 5


def test_another_seed_and_another_epoch_give_another_order() -> None:
    def epochs(seed: int) -> list[list[int]]:
        sampler = GlobalBatchSampler(50, 50, first=0, count=50, seed=seed)
        return [batch.tolist() for batch in sampler.batches(0, 2)]

    orders = [*epochs(0), *epochs(1), list(range(50))]
    assert all(a != b for i, a in enumerate(orders) for b in orders[:i])


def test_the_batch_across_the_seam_of_two_epochs_ends_one_and_begins_the_next() -> None:
    whole = GlobalBatchSampler(5, 5, first=0, count=5, seed=3).batches(0, 2)
    stream = torch.cat(whole).tolist()
    batches = GlobalBatchSampler(5, 3, first=0, count=3, seed=3).batches(0, 3)
    assert [batch.tolist() for batch in batches] == [stream[0:3], stream[3:6], stream[6:9]]


def test_changing_a_returned_batch_does_not_change_later_ones() -> None:
    sampler = GlobalBatchSampler(6, 2, first=0, count=2, seed=0)
    expected = [batch.tolist() for batch in sampler.batches(0, 3)]
    sampler.batches(0, 3)[0].zero_()
    assert [batch.tolist() for batch in sampler.batches(0, 3)] == expected


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"dataset_size": 0}, "dataset size: got 0, expected at least 1"),
        ({"global_batch_size": -1}, "global batch size: got -1, expected at least 1"),
        ({"first": -1}, "first sample of the rank: got -1, expected at least 0"),
        ({"count": 0}, "samples per rank: got 0, expected at least 1"),
        ({"seed": -1}, "seed: got -1, expected at least 0"),
        ({"first": 3, "count": 2}, "got samples 3 to 5 of a global batch; .* at most 4"),
    ],
)
def test_impossible_sizes_are_usage_errors(changed: dict[str, int], message: str) -> None:
    sizes = {"dataset_size": 10, "global_batch_size": 4, "first": 0, "count": 2, "seed": 0}
    with pytest.raises(UsageError, match=message):
        GlobalBatchSampler(**(sizes | changed))


def test_a_global_batch_larger_than_the_dataset_is_a_data_error_with_a_remedy() -> None:
    with pytest.raises(
        DataError, match=r"size 11 .* 10 samples; take a smaller batch, or --data s"
    ):
        GlobalBatchSampler(10, 11, first=0, count=1, seed=0)


@pytest.mark.parametrize(("start", "steps"), [(-1, 1), (0, -1)])
def test_negative_steps_are_usage_errors(start: int, steps: int) -> None:
    sampler = GlobalBatchSampler(10, 4, first=0, count=2, seed=0)
    with pytest.raises(UsageError, match="got -1, expected at least 0"):
        sampler.batches(start, steps)


def test_an_order_has_every_index_once_and_belongs_to_its_seed_and_epoch() -> None:
    orders = [permutation(50, seed=seed, epoch=epoch) for seed in (0, 1) for epoch in (0, 1, 2)]
    assert all(sorted(order.tolist()) == list(range(50)) for order in orders)
    assert len({tuple(order.tolist()) for order in orders}) == 6
    assert orders[1].equal(permutation(50, seed=0, epoch=1))


def test_the_orders_are_those_that_recorded_sweeps_had() -> None:
    order = permutation(6, seed=1, epoch=2)
    assert order.dtype == torch.int64
    assert order.tolist() == [4, 5, 1, 0, 3, 2]


def test_torchs_random_state_has_no_part_in_it() -> None:
    before = torch.get_rng_state()
    first = permutation(50, seed=0, epoch=0)
    assert torch.get_rng_state().equal(before)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1234)
        assert permutation(50, seed=0, epoch=0).equal(first)


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
