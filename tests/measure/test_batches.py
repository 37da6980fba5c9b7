"""However samples are loaded, steps get those of the sampler, in its order, and nothing stays."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpbench.data.datasets import Dataset
from dpbench.data.sharding import rank_index_stream
from dpbench.measure.batches import BatchSampler, loading_batches
from dpbench.measure.step import LoadSamples
from tests.builders import trial_spec
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


def taken(load: LoadSamples, sampler: BatchSampler, portions: list[int]) -> list[Any]:
    """Inputs and targets of every micro-step of every window."""
    return [
        load(indices) for steps in portions for step in sampler.steps(steps) for indices in step
    ]


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
            batches.append(taken(load, BatchSampler(trial, rank, SAMPLES, CPU), portions))
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
    batches = rank_index_stream(SAMPLES, 8, first=4, count=4, seed=0)
    expected = [batch.tolist() for batch in islice(batches, 26)]
    warmup, first, second, after = (expected[a:b] for a, b in ((0, 4), (4, 14), (14, 24), (24, 26)))
    assert found == warmup + first + first + second + second + after


def test_workers_give_the_same_samples_too() -> None:
    images = Dataset(inputs=torch.rand(SAMPLES, 3, 4, 4), targets=torch.arange(SAMPLES))
    found = []
    for settings in ({}, {"prefetch": 2, "data_workers": 2}):
        trial = trial_spec(implementation="fsdp2", accumulation_steps=2, **settings)
        with loading_batches(trial, 1, images, CPU) as load:
            found.append(taken(load, BatchSampler(trial, 1, SAMPLES, CPU), [2, 0, 5]))
    for (inputs, targets), (same_inputs, same_targets) in zip(*found, strict=True):
        assert inputs.equal(same_inputs)
        assert inputs.stride() == same_inputs.stride()
        assert targets.equal(same_targets)
