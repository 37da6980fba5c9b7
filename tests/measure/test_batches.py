"""A rank takes the sampler's batches in order, each once, however they are asked for."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpbench.data.sharding import GlobalBatchSampler
from dpbench.measure.batches import BatchQueue
from tests.builders import trial_spec

CPU = torch.device("cpu")
SAMPLES = 50


@given(st.lists(st.integers(0, 7), max_size=6))
def test_the_portions_do_not_change_the_order(portions: list[int]) -> None:
    queue = BatchQueue(trial_spec(), 1, SAMPLES, CPU)
    taken = [indices for steps in portions for step in queue.take(steps) for indices in step]
    sampler = GlobalBatchSampler(SAMPLES, 8, first=4, count=4, seed=0)
    expected = sampler.batches(0, sum(portions))
    assert [batch.tolist() for batch in taken] == [batch.tolist() for batch in expected]


@pytest.mark.parametrize("micro_steps", [1, 3])
def test_a_step_has_a_batch_for_each_micro_step(micro_steps: int) -> None:
    queue = BatchQueue(trial_spec(accumulation_steps=micro_steps), 0, SAMPLES, CPU)
    assert [len(step) for step in queue.take(5)] == [micro_steps] * 5
