"""What is seen of a script's batches, without ranks."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from dpbench.measure.script.clock import Segment, StepCounts
from dpbench.measure.script.watching import Batches, Feed, Watched
from tests.measure.script.tasks import task


def fed(labels: torch.Tensor, **loading: Any) -> Watched:
    """What was watched of two steps whose loader is made in the line of their loop."""
    watched = Watched(task())
    clock: Any = SimpleNamespace(
        segment=Segment("as-is", 9), taken=0, counts=StepCounts(), loads=False
    )

    def batches(loader: DataLoader[Any]) -> Iterator[Any]:
        watched.feeds[loader] = Feed()
        return Batches(loader, DataLoader.__iter__(loader), watched, clock)

    data = TensorDataset(torch.ones(8, 3), labels)
    for _, clock.taken in zip(
        batches(DataLoader(data, batch_size=4, num_workers=0, **loading)), (1, 2), strict=True
    ):
        pass
    gc.collect()
    return watched


def test_a_loader_that_the_script_has_dropped_is_known_afterwards() -> None:
    loader = fed(torch.arange(8)).feeding_loader
    assert loader is not None
    assert loader.num_workers == 0


def test_batches_with_equal_inputs_are_told_from_each_other_by_their_targets() -> None:
    one, same, other = (fed(torch.arange(8) + k).batch_digest() for k in (0, 0, 1))
    assert one is not None
    assert one == same != other


def test_equal_batches_say_nothing_of_ranks_that_have_a_distributed_sampler() -> None:
    sampler = DistributedSampler(TensorDataset(torch.ones(8, 1)), num_replicas=1, rank=0)
    assert fed(torch.arange(8), sampler=[*range(8)]).batch_digest() is not None
    assert fed(torch.arange(8), sampler=sampler).batch_digest() is None
