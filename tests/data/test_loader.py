from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch

from dpbench.data.datasets import Dataset
from dpbench.data.loader import Batch, EpochLoader, Sent, receive
from dpbench.data.sharding import EpochPlan
from tests.training.jobs import training_spec

CPU = torch.device("cpu")
SAMPLES = 43
DATASET = Dataset(
    inputs=torch.arange(2.0 * SAMPLES).reshape(SAMPLES, 2), targets=torch.arange(SAMPLES)
)
SPEC = training_spec(accumulation_steps=2)
PLAN = EpochPlan(SPEC, SAMPLES)


def loader(process: int = 0, prefetch: int = 0, device: torch.device = CPU) -> EpochLoader:
    return EpochLoader(DATASET, PLAN, process=process, device=device, prefetch=prefetch)


def values(windows: Iterable[Sent[list[Batch]]]) -> list[object]:
    return [
        (batch.inputs.tolist(), batch.targets.tolist(), batch.weight, batch.samples)
        for window in windows
        for batch in receive(window)
    ]


def test_the_batches_are_the_samples_of_the_plan_with_its_weights() -> None:
    with loader(process=1).epoch(2) as windows:
        found = values(windows)
    assert found == [
        (DATASET.inputs[i].tolist(), i.tolist(), part.weight, len(i))
        for number in range(PLAN.steps)
        for part in PLAN.window(2, number, 1)
        for i in (part.indices,)
    ]


def test_all_processes_together_load_every_sample_once() -> None:
    found: list[int] = []
    for process in (0, 1):
        with loader(process).epoch(0) as windows:
            found += [i for w in windows for batch in receive(w) for i in batch.targets.tolist()]
    assert sorted(found) == list(range(SAMPLES))


@pytest.mark.parametrize("prefetch", [1, 4])
def test_loading_ahead_changes_nothing(prefetch: int) -> None:
    with loader().epoch(1) as plain, loader(prefetch=prefetch).epoch(1) as ahead:
        assert values(ahead) == values(plain)


@pytest.mark.gpu
@pytest.mark.parametrize("prefetch", [0, 2])
def test_on_a_gpu_the_batches_are_the_same(prefetch: int) -> None:
    device = torch.device("cuda", 0)
    with loader().epoch(0) as plain, loader(prefetch=prefetch, device=device).epoch(0) as copied:
        windows = list(copied)
        assert all(batch.inputs.device == device for w in windows for batch in receive(w))
        assert values(windows) == values(plain)
