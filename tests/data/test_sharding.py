"""Which samples a rank takes: orders, shares, global batches, and a sampler for DataLoader."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpbench.data.sharding import BalancedSampler, EpochPlan, sample_indices
from dpbench.errors import UsageError
from dpbench.parallel.dp.scatter_gather import balanced_split
from dpbench.specs.parallel import split_by_shares
from dpbench.specs.training import TrainingSpec
from tests.builders import configuration
from tests.training.jobs import training_spec

quick = settings(max_examples=100, deadline=None)


def order(samples: int, *, seed: int = 0, epoch: int = 0) -> list[int]:
    indices: list[int] = sample_indices(range(samples), samples, seed=seed, epoch=epoch).tolist()
    return indices


def test_an_order_has_every_index_once_and_belongs_to_its_seed_and_epoch() -> None:
    before = torch.get_rng_state()
    orders = [order(50, seed=seed, epoch=epoch) for seed in (0, 1) for epoch in (0, 1, 2)]
    assert torch.get_rng_state().equal(before)
    assert all(sorted(one) == [*range(50)] for one in orders)
    assert len({tuple(one) for one in orders}) == 6
    assert order(6, seed=1, epoch=2) == [4, 5, 1, 0, 3, 2]  # as recorded sweeps had it


def of_all_ranks(dataset_size: int, world_size: int, **options: Any) -> list[list[int]]:
    samplers = [
        BalancedSampler(dataset_size, rank=rank, world_size=world_size, **options)
        for rank in range(world_size)
    ]
    assert [len(sampler) for sampler in samplers] == [len(list(sampler)) for sampler in samplers]
    return [list(sampler) for sampler in samplers]


@quick
@given(st.integers(1, 9), st.integers(0, 110), st.booleans())
def test_all_ranks_together_have_every_sample_once_and_sizes_differ_by_one_at_most(
    world_size: int, more: int, shuffle: bool
) -> None:
    parts = of_all_ranks(world_size + more, world_size, shuffle=shuffle)
    assert sorted(i for part in parts for i in part) == [*range(world_size + more)]
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_set_epoch_changes_the_whole_order_and_the_seed_reproduces_it() -> None:
    def samples(epoch: int, seed: int) -> list[int]:
        sampler = BalancedSampler(100, rank=1, world_size=2, seed=seed)
        sampler.set_epoch(epoch)
        return list(sampler)

    assert samples(0, 0) == samples(0, 0)
    assert set(samples(0, 0)) != set(samples(1, 0))
    assert set(samples(0, 0)) != set(samples(0, 1))


def test_arguments_that_cannot_be_are_refused() -> None:
    for changed, message in (
        ({"rank": 2}, "got dataset_size=10, rank=2, world_size=2, seed=0; expected a rank from 0"),
        ({"dataset_size": 1}, "dataset_size=1.*a sample for each rank"),
        ({"seed": -1}, "seed=-1"),
    ):
        arguments: dict[str, Any] = {"dataset_size": 10, "rank": 0, "world_size": 2} | changed
        with pytest.raises(ValueError, match=message):
            BalancedSampler(**arguments)
    with pytest.raises(ValueError, match="got epoch -1"):
        BalancedSampler(10, rank=0, world_size=2).set_epoch(-1)


Step = list[list[torch.Tensor]]
"""The indices of each rank, micro-step by micro-step."""


@st.composite
def plans(draw: st.DrawFn) -> tuple[TrainingSpec, EpochPlan, int]:
    spec = training_spec(
        seed=draw(st.integers(0, 99)),
        group_size=draw(st.integers(1, 5)),
        batch_size=draw(st.integers(1, 4)),
        accumulate=draw(st.integers(1, 4)),
        last_batch=draw(st.sampled_from(["step", "drop"])),
        implementation=draw(st.sampled_from(["ddp", "ddp", "dp"])),
    )
    least = spec.group_size if spec.last_batch == "step" else spec.effective_batch_size
    samples = draw(st.integers(least, least + 60))
    count = spec.process_count
    shares = draw(st.just(()) | st.lists(st.floats(0.1, 10), min_size=count, max_size=count))
    return spec, EpochPlan(spec, samples, shares=shares), samples


def steps(spec: TrainingSpec, plan: EpochPlan, epoch: int = 0) -> list[Step]:
    ranks = range(spec.process_count)
    return [[plan.step(epoch, n, rank) for rank in ranks] for n in range(plan.steps_per_epoch)]


def micro_steps(step: Step) -> list[list[int]]:
    """The samples of all ranks, micro-step by micro-step."""
    found = zip(*step, strict=True)
    return [[i for part in parts for i in part.tolist()] for parts in found]


@quick
@given(plans(), st.integers(0, 3))
def test_an_epoch_is_its_permutation_but_for_a_dropped_step(
    drawn: tuple[TrainingSpec, EpochPlan, int], epoch: int
) -> None:
    spec, plan, samples = drawn
    found = steps(spec, plan, epoch)
    trained = [index for step in found for micro_step in micro_steps(step) for index in micro_step]
    count = plan.samples_per_epoch
    assert trained == order(samples, seed=spec.workload.seed, epoch=epoch)[:count]
    # What is missing makes less than a step, in micro-steps.
    most = spec.effective_batch_size + spec.group_size if spec.last_batch == "drop" else 1
    assert 0 <= samples - count < most
    for rank, number in ((0, 1), (spec.process_count - 1, plan.steps_per_epoch)):
        dealt = sum(len(part) for step in found[:number] for part in step[rank])
        assert plan.samples_of(rank, number) == dealt


@quick
@given(plans())
def test_every_rank_has_samples_in_every_micro_step(
    drawn: tuple[TrainingSpec, EpochPlan, int],
) -> None:
    spec, plan, _ = drawn
    found = steps(spec, plan)
    for number, step in enumerate(found):
        counts = [len(part) for rank in step for part in rank]
        assert min(counts) >= 1
        assert sum(counts) == plan.samples_before(number + 1) - plan.samples_before(number)
        assert len({len(rank) for rank in step}) == 1
        is_full = len(step[0]) == spec.accumulate
        assert is_full or (number == plan.steps_per_epoch - 1 and spec.last_batch == "step")
    sizes = [len(micro_step) for step in found for micro_step in micro_steps(step)]
    batch = spec.global_batch_size
    assert set(sizes[:-1]) <= {batch}
    assert spec.group_size <= sizes[-1] < batch + spec.group_size


def test_seven_replicas_with_batches_of_three_make_equally_many_steps() -> None:
    # Shards of 8571 and 8572 samples would make 2857 and 2858 batches of 3.
    spec = training_spec(group_size=7, batch_size=3)
    plan = EpochPlan(spec, 60_000)
    assert plan.steps_per_epoch == 2857
    last = [plan.step(0, 2856, rank)[0] for rank in range(7)]
    # 60,000 are 2857 × 21 and 3 more: too few for 7 replicas, so they join the last 21.
    assert [len(part) for part in last] == [4, 4, 4, 3, 3, 3, 3]
    assert plan.samples_per_epoch == 60_000


def test_dropping_leaves_out_the_step_of_fewer_micro_steps_only() -> None:
    # Micro-steps of 8, 8, 8, 8, 3: two steps of two, and one of one.
    spec = training_spec(accumulate=2, last_batch="drop")
    plan = EpochPlan(spec, 35)
    assert (plan.steps_per_epoch, plan.samples_per_epoch) == (2, 32)
    # 8, 8, 8, 3 are two whole steps, the last with fewer samples.
    plan = EpochPlan(spec, 27)
    assert (plan.steps_per_epoch, plan.samples_per_epoch) == (2, 27)


def test_too_few_samples_are_data_errors_with_the_numbers() -> None:
    with pytest.raises(UsageError, match="got 3 training samples at group size 4: 0 micro-steps"):
        EpochPlan(training_spec(group_size=4), 3)
    with pytest.raises(UsageError, match=": 2 micro-steps an epoch, of 3 in a step"):
        EpochPlan(training_spec(accumulate=3, last_batch="drop"), 16)


shares_of_ranks = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=8)


@quick
@given(shares_of_ranks, st.integers(0, 500))
def test_the_sizes_are_all_of_the_total_and_nobody_goes_empty(
    shares: list[float], more: int
) -> None:
    total = len(shares) + more
    sizes = split_by_shares(total, shares)
    assert sum(sizes) == total
    assert min(sizes) >= 1


@quick
@given(st.integers(1, 600), st.integers(1, 5000))
def test_a_batch_is_divided_among_ranks_as_it_is_scattered_over_replicas(
    parts: int, total: int
) -> None:
    """dpbench.parallel stands alone, so its function is another one."""
    settings = configuration(scaling="strong", batch_size=total, group_size=parts)
    assert [size for size in settings.replica_batch_sizes if size] == balanced_split(total, parts)


@pytest.mark.parametrize(
    ("total", "shares", "sizes"),
    [
        (10, (2, 1), (7, 3)),
        (30, (9, 1), (27, 3)),
        # Due 0.1 and 9.9: the least of one comes from the other.
        (10, (1, 99), (1, 9)),
        # Due 2.94, 0.03, 0.03.
        (3, (98, 1, 1), (1, 1, 1)),
        # The sum of 0.1, 0.2 and 0.3 is a little more than 0.6.
        (6, (0.1, 0.2, 0.3), (1, 2, 3)),
        # Due 2.5 and 2.5: the earlier one gets what is left.
        (5, (0.3, 0.3), (3, 2)),
    ],
)
def test_divisions_worked_by_hand(
    total: int, shares: tuple[float, ...], sizes: tuple[int, ...]
) -> None:
    assert split_by_shares(total, shares) == sizes
