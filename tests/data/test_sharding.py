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
    EpochPlan,
    GlobalBatchSampler,
    MicroBatch,
    permutation,
)
from dpbench.errors import DataError, UsageError
from dpbench.specs.training import TrainingSpec
from tests.data.training_specs import training_spec


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


Window = list[tuple[MicroBatch, ...]]
"""The micro-batches of each process."""


@st.composite
def plans(draw: st.DrawFn) -> tuple[TrainingSpec, EpochPlan, int]:
    spec = training_spec(
        seed=draw(st.integers(0, 99)),
        group_size=draw(st.integers(1, 5)),
        batch_size=draw(st.integers(1, 4)),
        accumulation_steps=draw(st.integers(1, 4)),
        last_window=draw(st.sampled_from(["step", "drop"])),
        implementation=draw(st.sampled_from(["ddp", "ddp", "dp"])),
    )
    least = spec.group_size if spec.last_window == "step" else spec.effective_batch_size
    samples = draw(st.integers(least, least + 60))
    count = spec.process_count
    shares = draw(st.none() | st.lists(st.floats(0.1, 10), min_size=count, max_size=count))
    return spec, EpochPlan(spec, samples, shares=shares), samples


def windows(spec: TrainingSpec, plan: EpochPlan, epoch: int = 0) -> list[Window]:
    processes = range(spec.process_count)
    return [[plan.window(epoch, n, process) for process in processes] for n in range(plan.steps)]


def micro_steps(window: Window) -> list[list[int]]:
    """The samples of all processes, micro-step by micro-step."""
    steps = zip(*window, strict=True)
    return [[i for part in parts for i in part.indices.tolist()] for parts in steps]


def epoch_of(spec: TrainingSpec, plan: EpochPlan, epoch: int = 0) -> list[int]:
    found = (step for window in windows(spec, plan, epoch) for step in micro_steps(window))
    return [index for step in found for index in step]


@quick
@given(plans(), st.integers(0, 3))
def test_an_epoch_is_its_permutation_but_for_a_dropped_window(
    drawn: tuple[TrainingSpec, EpochPlan, int], epoch: int
) -> None:
    spec, plan, samples = drawn
    order = permutation(samples, seed=spec.workload.seed, epoch=epoch).tolist()
    trained = epoch_of(spec, plan, epoch)
    assert trained == order[: plan.trained_samples]
    if spec.last_window == "step":
        assert plan.trained_samples == samples
    else:
        # What is missing makes less than a window, in micro-steps.
        assert samples - plan.trained_samples < spec.effective_batch_size + spec.group_size


@quick
@given(plans())
def test_every_process_has_samples_in_every_micro_step_of_the_same_windows(
    drawn: tuple[TrainingSpec, EpochPlan, int],
) -> None:
    spec, plan, _ = drawn
    for number, window in enumerate(windows(spec, plan)):
        counts = {len(parts) for parts in window}
        assert len(counts) == 1
        assert all(len(part.indices) >= 1 for parts in window for part in parts)
        full = spec.accumulation_steps
        last_of_a_stepped_epoch = number == plan.steps - 1 and spec.last_window == "step"
        assert counts == {full} or (last_of_a_stepped_epoch and counts.pop() < full)


@quick
@given(plans())
def test_only_the_last_micro_step_has_not_the_global_batch_size(
    drawn: tuple[TrainingSpec, EpochPlan, int],
) -> None:
    spec, plan, _ = drawn
    sizes = [len(step) for window in windows(spec, plan) for step in micro_steps(window)]
    batch = spec.global_batch_size
    assert set(sizes[:-1]) <= {batch}
    assert spec.group_size <= sizes[-1] < batch + spec.group_size


@quick
@given(plans())
def test_the_weights_of_a_window_are_as_its_samples_and_sum_to_the_processes(
    drawn: tuple[TrainingSpec, EpochPlan, int],
) -> None:
    spec, plan, _ = drawn
    for window in windows(spec, plan):
        parts = [part for process in window for part in process]
        assert sum(part.weight for part in parts) == pytest.approx(spec.process_count, rel=1e-12)
        per_sample = parts[0].weight / len(parts[0].indices)
        assert all(
            part.weight / len(part.indices) == pytest.approx(per_sample, rel=1e-12)
            for part in parts
        )


@quick
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(0, 60))
def test_every_number_of_replicas_takes_the_same_samples_in_the_same_order(
    first: int, second: int, accumulation: int, more: int
) -> None:
    batch = 2 * math.lcm(first, second)
    samples = batch + more
    steps = []
    for group in (first, second):
        spec = training_spec(
            group_size=group, batch_size=batch // group, accumulation_steps=accumulation
        )
        plan = EpochPlan(spec, samples)
        assert epoch_of(spec, plan, 1) == permutation(samples, seed=0, epoch=1).tolist()
        steps.append([micro_steps(window) for window in windows(spec, plan, 1)])
    rest = samples % batch
    if rest == 0 or rest >= max(first, second):
        assert steps[0] == steps[1]


@settings(max_examples=25, deadline=None)
@given(plans())
def test_with_all_gradients_weighted_the_average_is_that_of_the_windows_mean_loss(
    drawn: tuple[TrainingSpec, EpochPlan, int],
) -> None:
    spec, plan, samples = drawn
    generator = torch.Generator().manual_seed(samples)
    x = torch.randn(samples, 3, generator=generator, dtype=torch.float64)
    y = torch.randn(samples, generator=generator, dtype=torch.float64)

    def gradient(indices: torch.Tensor) -> torch.Tensor:
        weights = torch.ones(3, dtype=torch.float64, requires_grad=True)
        ((x[indices] @ weights).tanh() - y[indices]).square().mean().backward()
        assert weights.grad is not None
        return weights.grad

    window = windows(spec, plan)[-1]
    summed = [sum(part.weight * gradient(part.indices) for part in parts) for parts in window]
    average = torch.stack([torch.as_tensor(one) for one in summed]).mean(0)
    union = torch.cat([part.indices for parts in window for part in parts])
    torch.testing.assert_close(average, gradient(union), rtol=0, atol=1e-12)


@quick
@given(plans())
def test_the_same_spec_gives_the_same_plan_in_any_order_of_asking(
    drawn: tuple[TrainingSpec, EpochPlan, int],
) -> None:
    spec, plan, samples = drawn
    again = EpochPlan(spec, samples, shares=plan._shares)
    forwards = [epoch_of(spec, plan, epoch) for epoch in (0, 1)]
    assert [epoch_of(spec, again, epoch) for epoch in (1, 0)] == forwards[::-1]


def test_every_epoch_and_seed_has_an_order_of_its_own() -> None:
    spec, other = training_spec(), training_spec(seed=1)
    plan = EpochPlan(spec, 40)
    orders = [epoch_of(spec, plan, epoch) for epoch in range(3)]
    orders.append(epoch_of(other, EpochPlan(other, 40)))
    assert all(a != b for i, a in enumerate(orders) for b in orders[:i])


def test_seven_replicas_with_batches_of_three_make_equally_many_steps() -> None:
    # Shards of 8571 and 8572 samples would make 2857 and 2858 batches of 3.
    spec = training_spec(group_size=7, batch_size=3)
    plan = EpochPlan(spec, 60_000)
    assert plan.steps == 2857
    last = [plan.window(0, 2856, process)[0] for process in range(7)]
    # 60,000 are 2857 × 21 and 3 more: too few for 7 replicas, so they join the last 21.
    assert [len(part.indices) for part in last] == [4, 4, 4, 3, 3, 3, 3]
    assert plan.trained_samples == 60_000


def test_an_epoch_worked_by_hand() -> None:
    # 120 samples in batches of 32: three and a rest of 24, which is not dropped.
    spec = training_spec(group_size=2, batch_size=16, accumulation_steps=2)
    plan = EpochPlan(spec, 120, shares=(3.0, 1.0))
    window = [plan.window(0, 1, process) for process in (0, 1)]
    assert plan.steps == 2
    assert [[len(part.indices) for part in parts] for parts in window] == [[24, 18], [8, 6]]
    # 24·2/56, 18·2/56 and so on.
    assert [[part.weight for part in parts] for parts in window] == [
        [48 / 56, 36 / 56],
        [16 / 56, 12 / 56],
    ]


def test_an_epoch_smaller_than_a_batch_is_one_micro_step() -> None:
    plan = EpochPlan(training_spec(batch_size=100, accumulation_steps=8), 5)
    assert (plan.steps, plan.trained_samples) == (1, 5)
    (only,) = plan.window(0, 0, 0)
    assert (len(only.indices), only.weight) == (3, 3 * 2 / 5)


def test_dropping_leaves_out_the_window_of_fewer_micro_steps_only() -> None:
    # Micro-steps of 8, 8, 8, 8, 3: two windows of two, and one of one.
    spec = training_spec(accumulation_steps=2, last_window="drop")
    plan = EpochPlan(spec, 35)
    assert (plan.steps, plan.trained_samples) == (2, 32)
    # 8, 8, 8, 3 are two whole windows, the last with fewer samples.
    plan = EpochPlan(spec, 27)
    assert (plan.steps, plan.trained_samples) == (2, 27)


def test_a_window_that_is_kept_does_not_keep_the_whole_epoch() -> None:
    (part,) = EpochPlan(training_spec(), 1000).window(0, 0, 0)
    assert part.indices.untyped_storage().nbytes() == 4 * 8


@pytest.mark.parametrize(
    ("changes", "samples", "shares", "message"),
    [
        ({}, 0, None, "samples: got 0, expected at least 1"),
        ({"batch_size": 0}, 9, None, "batch size: got 0"),
        ({"group_size": 0}, 9, None, "group size: got 0"),
        ({"accumulation_steps": 0}, 9, None, "accumulation steps: got 0"),
        ({"seed": -1}, 9, None, "seed: got -1"),
        ({}, 9, (1.0,), "got 1 share for 2 processes; expected one for each"),
        ({"implementation": "dp"}, 9, (1.0, 1.0), "got 2 shares for 1 process;"),
        ({}, 9, (1.0, -1.0), r"shares: got 1\.0, -1\.0"),
    ],
)
def test_sizes_and_shares_that_cannot_be_are_usage_errors(
    changes: dict[str, Any], samples: int, shares: tuple[float, ...] | None, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        EpochPlan(training_spec(**changes), samples, shares=shares)


def test_too_few_samples_are_data_errors_with_the_numbers() -> None:
    with pytest.raises(DataError, match="got 3 training samples for 4 replicas; expected at"):
        EpochPlan(training_spec(group_size=4), 3)
    with pytest.raises(DataError, match="got 2 micro-steps an epoch for 3 in a window; to drop"):
        EpochPlan(training_spec(accumulation_steps=3, last_window="drop"), 16)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ((-1, 0, 0), "epoch: got -1"),
        ((0, 2, 0), "window: got 2, expected 0 to 1"),
        ((0, -1, 0), "window: got -1"),
        ((0, 0, 2), "process: got 2, expected 0 to 1"),
    ],
)
def test_a_place_outside_of_the_plan_is_refused(place: tuple[int, int, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        EpochPlan(training_spec(), 16).window(*place)
