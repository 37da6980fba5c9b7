"""The order of a script's segments, what is counted in them, and what is seen of its batches."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from dpbench.measure.script.clock import StepClock
from dpbench.measure.script.course import Course, RankStore
from dpbench.measure.script.watching import LoaderState, ScriptWatcher, WatchedIterator
from tests.builders import script_trial

SCRIPT = Path("train.py")
FIRST, SECOND = (torch.optim.SGD([torch.zeros(1)]) for _ in range(2))


class OfTwo(RankStore):
    """The first of two ranks, whose peer does as it does."""

    is_over = False

    def exchange(self, **values: Any) -> list[dict[str, Any]]:
        return [values, {"over": True} if self.is_over else values]


def course_of(inspect: Any = dict, **changes: Any) -> Course:
    store = OfTwo(0, 1, 0)
    store.size = 2
    trial = script_trial(SCRIPT, warmup_steps=4, timed_steps=10, **changes)
    return Course(trial, store, inspect)


def train(clock: StepClock, steps: int = 1000) -> list[str]:
    """The mode of every step until the clock has enough."""
    modes: list[str] = []
    for _ in range(steps):
        modes.append(clock.segment.mode)
        clock.counts.reducing_forwards += 1
        clock.counts.samples += 8
        if clock.step_ended(FIRST):
            break
    return modes


def test_segments_take_turns_as_a_palindrome_after_the_warm_up() -> None:
    course = course_of()
    modes = train(StepClock(course))
    kinds = ["as-is", "unsynced", "cached", "cached", "unsynced", "as-is"]
    assert modes == ["as-is"] * 4 + [kind for kind in kinds for _ in range(5)]
    assert [one.mode for one in course.measured] == kinds
    assert all([counts.samples for counts in one.counts] == [8] * 5 for one in course.measured)
    assert all(one.seconds >= sum(one.step_seconds) > 0 for one in course.measured)


def test_rounds_follow_until_the_time_is_filled() -> None:
    course = course_of(window_seconds=1e9)
    train(StepClock(course), 10_000)
    assert sum(len(one.counts) for one in course.measured if one.mode == "as-is") >= 1000


def test_a_queue_that_filled_up_is_emptied_before_the_next_segment_counts() -> None:
    course = course_of()
    clock = StepClock(course)
    clock.counts.queued_batches = 3
    modes = train(clock)
    assert modes[4 + 20 : 4 + 26] == ["as-is"] * 3 + ["unsynced"] * 3
    assert sum(len(one.counts) for one in course.measured) == 30


def test_alone_a_script_is_measured_as_it_is_only() -> None:
    assert {*train(StepClock(course_of(implementation="independent")))} == {"as-is"}


def test_only_the_first_optimizer_ends_steps() -> None:
    clock = StepClock(course_of())
    clock.step_ended(FIRST)
    clock.step_ended(SECOND)
    assert clock.steps == 1


@pytest.mark.parametrize(
    ("batches", "is_same"), [([1, 2], True), ([2, 2], False), ([None, None], False)]
)
def test_ranks_that_have_the_same_changing_batches_train_on_the_same_samples(
    batches: list[int | None], is_same: bool
) -> None:
    left = iter(batches)
    course = course_of(inspect=lambda: {"digests": {}, "batch": next(left)})
    train(StepClock(course))
    assert course.findings["same_samples"] is is_same


def test_whole_rounds_count_if_a_script_ends_too_soon() -> None:
    course = course_of(window_seconds=1e9)
    train(StepClock(course), 4 + 30 + 7)
    assert len(course.measured) == 6


def test_a_rank_stops_where_the_script_of_another_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    course = course_of()
    clock = StepClock(course)
    train(clock, 8)
    monkeypatch.setattr(OfTwo, "is_over", True)
    assert len(train(clock)) == 1
    assert course.measured == []


def test_interrupted_steps_are_marked() -> None:
    clock = StepClock(course_of())
    for step in range(4 + 4):
        if step in (4 + 1, 4 + 3):
            clock.counts.interrupted = True
        clock.step_ended(FIRST)
    assert [counts.interrupted for counts in clock.segment.counts] == [False, True, False, True]


def fed(labels: torch.Tensor, **loading: Any) -> ScriptWatcher:
    """What was watched of two steps whose loader is made in the line of their loop."""
    watcher = ScriptWatcher(script_trial(SCRIPT))
    clock = StepClock(course_of())

    def batches(loader: DataLoader[Any]) -> Iterator[Any]:
        watcher.loaders[loader] = LoaderState()
        return WatchedIterator(loader, DataLoader.__iter__(loader), watcher, clock)

    data = TensorDataset(torch.ones(8, 3), labels)
    for _, clock.steps in zip(
        batches(DataLoader(data, batch_size=4, num_workers=0, **loading)), (1, 2), strict=True
    ):
        pass
    gc.collect()
    return watcher


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
