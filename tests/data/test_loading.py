"""Batches come in their order from threads and processes, which are gone at the end."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch

from dpbench.data.batch import Batch
from dpbench.data.datasets import Dataset, UserDataset
from dpbench.data.loading import loaded_ahead, loaded_by_workers, to_device
from dpbench.data.sharding import EpochPlan
from dpbench.errors import UsageError
from tests.recording_cuda import GPU, GpuTensor, HostTensor, RecordingCuda, put_into_parallel
from tests.training.jobs import training_spec
from tests.waiting import is_alive, prefetch_threads, wait_until

CPU = torch.device("cpu")


def numbers(made: list[int], count: int = 1000) -> Iterator[int]:
    for number in range(count):
        made.append(number)
        yield number


def fails_after_two() -> Iterator[int]:
    yield 0
    yield 1
    raise KeyError("third")


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_the_items_are_the_same_in_the_same_order(depth: int) -> None:
    with loaded_ahead(range(50), depth, CPU) as items:
        assert list(items) == list(range(50))
        assert list(items) == []
    assert prefetch_threads() == []


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_an_error_of_the_producer_comes_in_its_place_with_its_traceback(depth: int) -> None:
    with loaded_ahead(fails_after_two(), depth, CPU) as items:
        assert [next(items), next(items)] == [0, 1]
        with pytest.raises(KeyError, match="third") as caught:
            next(items)
        assert "fails_after_two" in [frame.name for frame in traceback.extract_tb(caught.tb)]
        assert list(items) == []
    assert prefetch_threads() == []


def test_an_early_break_ends_the_thread_though_the_queue_is_full() -> None:
    made: list[int] = []
    with loaded_ahead(numbers(made), 2, CPU) as items:
        for _ in items:
            break
        wait_until(lambda: len(made) == 3)  # so that the producer waits for room with the last
    assert prefetch_threads() == []


class Pinned(HostTensor):
    """A tensor of the host that notes that it is pinned, and how it is copied."""

    def pin_memory(self, *_: Any) -> Pinned:
        GpuTensor.calls.append("pin")
        return self


def test_copies_to_a_gpu_run_on_a_stream_of_their_own_that_the_computation_waits_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda = RecordingCuda()
    put_into_parallel(cuda, monkeypatch)
    samples, weight = to_device((torch.ones(2).as_subclass(Pinned), 0.5), GPU)
    assert (samples.tolist(), weight) == ([1.0, 1.0], 0.5)
    assert cuda.calls == [
        "begin side stream of cuda:1",
        "pin",
        "copy to cuda:1",
        "record on side stream of cuda:1",
        "end side stream of cuda:1",
        "stream of cuda:1 waits for the event",
        "stream of cuda:1 uses the tensor",
    ]


BATCHES = [torch.tensor([9, 2]), torch.tensor([5]), torch.tensor([2, 7, 1]), torch.tensor([0])]


class Theirs:
    """Says of each item which process took it and what it drew."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> tuple[Any, int]:
        if index == 13:
            raise KeyError("no label for 13")
        if index == 14:
            time.sleep(3600)
        return (os.getpid(), torch.rand(1), torch.get_num_threads()), index


def taken(batches: list[torch.Tensor], workers: int, seed: int = 0) -> list[Any]:
    with loaded_by_workers(
        UserDataset(Theirs()), batches, workers=workers, prefetch=2, seed=seed
    ) as answers:
        return list(answers)


def test_batches_come_in_their_order_with_their_samples_from_other_processes() -> None:
    before = torch.get_rng_state()
    answers = taken(BATCHES, workers=2)
    assert torch.get_rng_state().equal(before)
    assert [targets.tolist() for _, targets in answers] == [b.tolist() for b in BATCHES]
    pids = [inputs[0][0].item() for inputs, _ in answers]
    assert pids[:2] == pids[2:]
    assert len({*pids, os.getpid()}) == 3
    assert multiprocessing.active_children() == []


def test_an_error_comes_in_its_place_with_the_line_and_leaves_no_process() -> None:
    batches = [torch.tensor([1]), torch.tensor([12, 13]), torch.tensor([2])]
    with loaded_by_workers(
        UserDataset(Theirs()), batches, workers=2, prefetch=1, seed=0
    ) as answers:
        next(answers)
        with pytest.raises(UsageError, match=r"KeyError: 'no label for 13'.*test_loading"):
            next(answers)
    assert multiprocessing.active_children() == []


def start_and_tell(answer: Connection) -> None:
    hanging = [torch.tensor([14])]
    with loaded_by_workers(UserDataset(Theirs()), hanging, workers=1, prefetch=1, seed=0):
        answer.send(multiprocessing.active_children()[0].pid)
        time.sleep(3600)


def test_a_worker_that_hangs_ends_with_a_rank_that_is_killed() -> None:
    mine, theirs = multiprocessing.Pipe()
    rank = multiprocessing.get_context("fork").Process(target=start_and_tell, args=(theirs,))
    rank.start()
    worker = mine.recv()
    time.sleep(0.3)  # it has begun its item
    os.kill(rank.pid or 0, signal.SIGKILL)
    rank.join()
    wait_until(lambda: not is_alive(worker))


SAMPLES = 43
DATASET = Dataset(
    inputs=torch.arange(2.0 * SAMPLES).reshape(SAMPLES, 2), targets=torch.arange(SAMPLES)
)
SPEC = training_spec(accumulate=2)
PLAN = EpochPlan(SPEC, SAMPLES)


def load(epoch: int, rank: int = 0, prefetch: int = 0, device: torch.device = CPU) -> Any:
    return loaded_ahead(PLAN.batches(DATASET, epoch, 0, rank), prefetch, device)


def values(steps: Iterable[list[Batch]]) -> list[object]:
    return [
        (batch.inputs.tolist(), batch.targets.tolist(), batch.weight, batch.sample_count)
        for step in steps
        for batch in step
    ]


@pytest.mark.parametrize("prefetch", [0, 3])
def test_all_ranks_together_load_every_sample_once_with_the_weights_of_the_plan(
    prefetch: int,
) -> None:
    found: list[int] = []
    for rank in (0, 1):
        with load(2, rank, prefetch) as steps:
            batches = [batch for step in steps for batch in step]
        plan = [
            (part, PLAN.samples_before(number + 1) - PLAN.samples_before(number))
            for number in range(PLAN.steps_per_epoch)
            for part in PLAN.step(2, number, rank)
        ]
        for batch, (part, of_step) in zip(batches, plan, strict=True):
            assert batch.inputs.equal(DATASET.inputs[part])
            assert batch.sample_count == len(part)
            assert batch.weight == pytest.approx(2 * len(part) / of_step)
            found += batch.targets.tolist()
    assert sorted(found) == list(range(SAMPLES))


@pytest.mark.gpu
@pytest.mark.parametrize("prefetch", [0, 2])
def test_on_a_gpu_the_batches_are_the_same(prefetch: int) -> None:
    device = torch.device("cuda", 0)
    with load(0) as plain, load(0, prefetch=prefetch, device=device) as copied:
        steps = list(copied)
        assert all(batch.inputs.device == device for step in steps for batch in step)
        assert values(steps) == values(plain)
