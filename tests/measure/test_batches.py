"""However samples are loaded, steps get those of the sampler, in its order, and nothing stays."""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpbench.data.datasets import Dataset
from dpbench.errors import DataError
from dpbench.measure.batches import StepSampler, loading_batches, micro_step_indices
from dpbench.measure.step import LoadSamples
from tests.builders import WORKLOAD, trial_spec
from tests.waiting import prefetch_threads

CPU = torch.device("cpu")
SAMPLES = 50
DATASET = Dataset(
    inputs={"x": torch.rand(SAMPLES, 3), "i": torch.arange(SAMPLES)}, targets=torch.arange(SAMPLES)
)


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    yield
    assert prefetch_threads() == []
    assert multiprocessing.active_children() == []


def taken(load: LoadSamples, sampler: StepSampler, portions: list[int]) -> list[Any]:
    """Inputs and targets of every micro-step of every window."""
    return [
        load(indices) for steps in portions for step in sampler.steps(steps) for indices in step
    ]


def of_all_ranks(
    dataset_size: int, group_size: int, batch_size: int, seed: int, steps: int
) -> list[list[int]]:
    """The micro-steps of all ranks put together again, step by step."""
    trial = trial_spec(
        workload=replace(WORKLOAD, seed=seed),
        group_size=group_size,
        batch_size=batch_size,
        scaling="strong",
    )
    streams = [micro_step_indices(trial, rank, dataset_size) for rank in range(group_size)]
    return [torch.cat(parts).tolist() for parts in islice(zip(*streams, strict=True), steps)]


@given(
    group_size=st.integers(1, 4),
    batch_size=st.integers(4, 24),
    spare=st.integers(0, 16),
    seed=st.integers(0, 1000),
)
def test_trials_consume_whole_epochs_whatever_the_group_size(
    group_size: int, batch_size: int, spare: int, seed: int
) -> None:
    size = batch_size + spare
    steps = size // math.gcd(size, batch_size)
    dealt = of_all_ranks(size, group_size, batch_size, seed, steps)
    consumed = [index for indices in dealt for index in indices]
    for start in range(0, len(consumed), size):
        assert sorted(consumed[start : start + size]) == [*range(size)]
    assert dealt == of_all_ranks(size, 1, batch_size, seed, steps)


def test_a_global_batch_larger_than_the_dataset_is_a_data_error_with_a_remedy() -> None:
    with pytest.raises(DataError, match=r"size 8 .* 7 samples; take a smaller batch, or --data s"):
        micro_step_indices(trial_spec(), 0, 7)


@given(
    portions=st.lists(st.integers(0, 6), max_size=4),
    prefetch=st.sampled_from([0, 1, 3]),
    accumulation_steps=st.integers(1, 3),
    batch_size=st.integers(1, 20),
    rank=st.integers(0, 1),
)
def test_steps_get_the_same_samples_as_from_the_device(
    portions: list[int], prefetch: int, accumulation_steps: int, batch_size: int, rank: int
) -> None:
    batches = []
    for ahead in (None, prefetch):
        trial = trial_spec(
            implementation="fsdp2",  # without segments that take the same samples again
            accumulation_steps=accumulation_steps,
            batch_size=batch_size,
            prefetch=ahead,
        )
        with loading_batches(trial, rank, DATASET, CPU) as load:
            batches.append(taken(load, StepSampler(trial, rank, SAMPLES, CPU), portions))
    resident, loaded = batches
    assert len(loaded) == sum(portions) * accumulation_steps
    for (inputs, targets), (same_inputs, same_targets) in zip(resident, loaded, strict=True):
        assert targets.equal(same_targets)
        assert inputs["x"].equal(same_inputs["x"])
        assert inputs["i"].equal(targets)


def test_a_segment_without_synchronization_gets_the_samples_of_the_one_before() -> None:
    trial = trial_spec(warmup_steps=2, timed_steps=10, accumulation_steps=2, prefetch=2)
    with loading_batches(trial, 1, DATASET, CPU) as load:
        found = [load(torch.empty(0))[0]["i"].tolist() for _ in range(2 * (2 + 4 * 5 + 1))]
    expected = [indices.tolist() for indices in islice(micro_step_indices(trial, 1, SAMPLES), 26)]
    warmup, first, second, after = (expected[a:b] for a, b in ((0, 4), (4, 14), (14, 24), (24, 26)))
    assert found == warmup + first + first + second + second + after


def test_workers_give_the_same_samples_too() -> None:
    images = Dataset(inputs=torch.rand(SAMPLES, 3, 4, 4), targets=torch.arange(SAMPLES))
    found = []
    for settings in ({}, {"prefetch": 2, "data_workers": 2}):
        trial = trial_spec(implementation="fsdp2", accumulation_steps=2, **settings)
        with loading_batches(trial, 1, images, CPU) as load:
            found.append(taken(load, StepSampler(trial, 1, SAMPLES, CPU), [2, 0, 5]))
    for (inputs, targets), (same_inputs, same_targets) in zip(*found, strict=True):
        assert inputs.equal(same_inputs)
        assert inputs.stride() == same_inputs.stride()
        assert targets.equal(same_targets)
