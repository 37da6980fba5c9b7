"""However samples are loaded, steps get those of the plan, in its order, and nothing stays."""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpbench.data.datasets import Dataset
from dpbench.measure.batches import StepSamples, loading_batches
from dpbench.measure.instruments import PHASE_STEPS
from dpbench.specs import Configuration
from tests.builders import WORKLOAD, configuration
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


def taken(settings: Configuration, rank: int, dataset: Dataset = DATASET) -> list[Any]:
    """Inputs and targets of every micro-step of a trial."""
    samples = StepSamples(settings, rank, SAMPLES, CPU)
    steps = [*samples.deal(settings.warmup)]
    steps += [step for _, segment in samples.segments(settings.steps) for step in segment]
    steps += samples.deal(PHASE_STEPS)
    with loading_batches(settings, rank, dataset, CPU) as load:
        return [load(indices) for step in steps for indices in step]


def of_all_ranks(
    dataset_size: int, group_size: int, batch_size: int, seed: int, steps: int
) -> list[list[int]]:
    """The micro-steps of all ranks put together again, step by step."""
    settings = configuration(
        workload=replace(WORKLOAD, seed=seed),
        group_size=group_size,
        batch_size=batch_size,
        scaling="strong",
    )
    ranks = [
        StepSamples(settings, rank, dataset_size, CPU).deal(steps) for rank in range(group_size)
    ]
    return [torch.cat([part for (part,) in parts]).tolist() for parts in zip(*ranks, strict=True)]


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


@given(
    implementation=st.sampled_from(["ddp", "fsdp2"]),
    warmup=st.integers(0, 6),
    steps=st.integers(1, 7),
    is_instrumented=st.booleans(),
    prefetch=st.sampled_from([0, 1, 3]),
    accumulate=st.integers(1, 3),
    batch_size=st.integers(1, 20),
    rank=st.integers(0, 1),
)
def test_steps_get_the_same_samples_as_from_the_device(
    prefetch: int, rank: int, **changes: Any
) -> None:
    resident, loaded = (
        taken(configuration(prefetch=ahead, **changes), rank) for ahead in (None, prefetch)
    )
    kinds = 2 if changes["implementation"] == "ddp" and changes["is_instrumented"] else 1
    count = changes["warmup"] + kinds * changes["steps"] + PHASE_STEPS
    assert len(loaded) == count * changes["accumulate"]
    for (inputs, targets), (same_inputs, same_targets) in zip(resident, loaded, strict=True):
        assert targets.equal(same_targets)
        assert inputs["x"].equal(same_inputs["x"])
        assert inputs["i"].equal(targets)


def test_a_step_that_loads_its_own_samples_gets_those_it_asks_for() -> None:
    """The number of steps of a window that fills a time is known after the warm-up only."""
    settings = configuration(prefetch=0, window_seconds=1.0)
    with loading_batches(settings, 0, DATASET, CPU) as load:
        assert [load(torch.tensor([n, 3]))[1].tolist() for n in (7, 9)] == [[7, 3], [9, 3]]


def test_workers_give_the_same_samples_too() -> None:
    images = Dataset(inputs=torch.rand(SAMPLES, 3, 4, 4), targets=torch.arange(SAMPLES))
    found = [
        taken(configuration(accumulate=2, **settings), 1, images)
        for settings in ({}, {"prefetch": 2, "data_workers": 2})
    ]
    for (inputs, targets), (same_inputs, same_targets) in zip(*found, strict=True):
        assert inputs.equal(same_inputs)
        assert inputs.stride() == same_inputs.stride()
        assert targets.equal(same_targets)


@pytest.mark.parametrize(("steps", "sizes"), [(5, [5]), (11, [4, 4, 3]), (50, [13, 13, 12, 12])])
def test_a_window_has_a_few_segments_of_equal_length(steps: int, sizes: list[int]) -> None:
    samples = StepSamples(configuration(is_instrumented=False), 0, SAMPLES, CPU)
    assert [len(segment) for _, segment in samples.segments(steps)] == sizes
