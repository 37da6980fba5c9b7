"""The order of a script's segments, what is counted in them, and what is seen of its batches."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from dpbench.measure.script.timing import ScriptTimer
from dpbench.measure.script.watching import ScriptWatcher, WatchedIterator
from dpbench.specs import Configuration
from tests.builders import script_configuration

SCRIPT = Path("train.py")
FIRST, SECOND = (torch.optim.SGD([torch.zeros(1)]) for _ in range(2))


class OfTwo(ScriptTimer):
    """That of the first of two ranks, whose peer does as it does."""

    peer_has_ended = False

    def exchange(self, **values: Any) -> list[dict[str, Any]]:
        return [] if self.peer_has_ended else [values, values]


class Watched(ScriptWatcher):
    """Of steps whose last batches are given."""

    def __init__(self, settings: Configuration, batches: list[int | None]) -> None:
        super().__init__(settings)
        self._left = iter(batches)

    def batch_digest(self) -> list[int | None] | None:
        batch = next(self._left)
        return None if batch is None else [batch]


class Script:
    """A script that takes steps, while a timer times them."""

    def __init__(self, *batches: int | None, **changes: Any) -> None:
        settings = script_configuration(SCRIPT, **{"warmup": 4, "steps": 10, **changes})
        self.watcher = Watched(settings, [*batches] or [None, None])
        self.timer = OfTwo(settings, self.watcher, HashStore(), 0)

    def train(self, steps: int = 1000) -> list[str]:
        """The mode of every step until the timer has enough."""
        modes: list[str] = []
        for _ in range(steps):
            modes.append(self.watcher.mode)
            self.watcher.counts.reducing_forwards += 1
            self.watcher.counts.samples += 8
            if self.timer.step_ended(FIRST):
                break
        return modes


def test_segments_take_turns_as_a_palindrome_after_the_warm_up() -> None:
    script = Script()
    kinds = ["timed", "unsynced", "cached", "cached", "unsynced", "timed"]
    assert script.train() == ["timed"] * 4 + [kind for kind in kinds for _ in range(5)]
    measured = script.timer.measured
    assert [one.mode for one in measured] == kinds
    assert all([counts.samples for counts in one.counts] == [8] * 5 for one in measured)
    windows = [one.window for one in measured]
    assert [(len(one.step_seconds), one.samples) for one in windows] == [(5, 5 * 8)] * 6
    assert all(one.seconds == pytest.approx(sum(one.step_seconds)) for one in windows)


def test_rounds_follow_until_the_time_is_filled() -> None:
    script = Script(window_seconds=1e9)
    script.train(10_000)
    assert sum(len(one.counts) for one in script.timer.measured if one.mode == "timed") >= 1000


def test_a_queue_that_filled_up_is_emptied_before_the_next_segment_counts() -> None:
    script = Script()
    script.watcher.counts.queued_batches = 3
    assert script.train()[4 + 20 : 4 + 26] == ["timed"] * 3 + ["unsynced"] * 3
    assert sum(len(one.counts) for one in script.timer.measured) == 30


def test_alone_a_script_is_measured_as_it_is_only() -> None:
    assert {*Script(implementation="independent").train()} == {"timed"}
    assert len(Script(implementation="independent", steps=1).train()) == 4 + 2


def test_only_the_first_optimizer_ends_steps() -> None:
    script = Script()
    script.timer.step_ended(FIRST)
    script.timer.step_ended(SECOND)
    assert script.watcher.steps == 1


@pytest.mark.parametrize(
    ("batches", "is_same"), [([1, 2], True), ([2, 2], False), ([None, None], False)]
)
def test_ranks_that_have_the_same_changing_batches_train_on_the_same_samples(
    batches: list[int | None], is_same: bool
) -> None:
    script = Script(*batches)
    script.train()
    assert script.timer.findings["same_samples"] is is_same


def test_whole_rounds_count_if_a_script_ends_too_soon() -> None:
    script = Script(window_seconds=1e9)
    script.train(4 + 30 + 7)
    assert len(script.timer.measured) == 6


def test_interrupted_steps_are_in_no_window() -> None:
    script = Script()
    script.train(4 + 2)
    script.watcher.counts.interrupted = True
    script.train()
    window = script.timer.measured[0].window
    assert (len(window.step_seconds), window.samples) == (4, 4 * 8)


def test_a_rank_stops_where_the_script_of_another_has_ended_and_counts_no_round_more() -> None:
    for steps in (8, 4 + 29):  # in the middle of the first round, and at its end
        script = Script()
        script.train(steps)
        script.timer.peer_has_ended = True
        assert len(script.train()) == 1
        assert script.timer.measured == []


def fed(labels: torch.Tensor, **loading: Any) -> ScriptWatcher:
    """What was watched of two steps whose loader is made in the line of their loop."""
    watcher = ScriptWatcher(script_configuration(SCRIPT))

    def batches(loader: DataLoader[Any]) -> Iterator[Any]:
        return WatchedIterator(loader, DataLoader.__iter__(loader), watcher)

    data = TensorDataset(torch.ones(8, 3), labels)
    for _ in batches(DataLoader(data, batch_size=4, num_workers=0, **loading)):
        watcher.end_step()
    gc.collect()
    return watcher


def test_a_loader_that_the_script_has_dropped_is_known_afterwards() -> None:
    loader = fed(torch.arange(8)).feeding
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
