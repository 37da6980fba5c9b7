"""The lines of a training's log: written, read, and what stands after a resumption."""

from __future__ import annotations

import json

import pytest

from dpbench.errors import FileError
from dpbench.records.trial import MemoryPeaks
from dpbench.training.events import (
    EVENT_KINDS,
    EndLine,
    EpochLine,
    Event,
    StartLine,
    StepLine,
    from_line,
    to_line,
)

STARTED = StartLine(
    world_size=2,
    hosts=("a", "b"),
    pids=(10, 11),
    samples_per_rank=(721, 721),
    steps_per_epoch=12,
    parameters=1_199_882,
    epoch=1,
    step=0,
)
STEP = StepLine(
    epoch=1,
    step=20,
    processed=1280,
    total=1442,
    rank_processed=640,
    rank_total=721,
    loss=float("inf"),
    learning_rate=1.0,
    samples_per_second=3412.4,
    data_wait_share=0.004,
    elapsed_seconds=3.2,
)
EPOCH = EpochLine(epoch=1, step=23, train_loss=0.5, learning_rate=1.0, epoch_seconds=4.1, best=True)
FINISHED = EndLine(
    final_loss=0.01,
    epochs=5,
    steps=115,
    state_sha256="0123456789abcdef",
    elapsed_seconds=21.0,
    samples=7210,
    peaks=(MemoryPeaks(host_bytes=100 << 20), MemoryPeaks(host_bytes=160 << 20)),
)
EVENTS: tuple[Event, ...] = (STARTED, STEP, EPOCH, FINISHED)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_is_a_line_of_json_and_comes_back(event: Event) -> None:
    line = to_line(event)
    assert "\n" not in line
    assert json.loads(line)["kind"] in EVENT_KINDS
    assert from_line(line) == event


def test_a_line_of_another_kind_is_an_error() -> None:
    with pytest.raises(FileError, match=r"^kind None; expected one of started, step"):
        from_line("{}")
