"""A window takes exactly its steps, times all of them, and lets nothing else in."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from unittest.mock import Mock, patch

import pytest
import torch

from dpbench.measure import device, window
from dpbench.measure.step import BenchmarkStepper
from dpbench.records.trial import Window
from dpbench.rendezvous.process_group import RankGroup
from tests.fake_nvml import put_nvml
from tests.recording_cuda import GPU, RecordingCuda, put_into_parallel

CPU = torch.device("cpu")
ALONE = RankGroup()


STEP = [torch.arange(4), torch.arange(3)]
Step = Callable[..., torch.Tensor]


def timed(
    step: Step, steps: int, devices: Sequence[torch.device] = (CPU,), ranks: RankGroup = ALONE
) -> Window:
    stepper = BenchmarkStepper(Mock(), Mock(), 1.0, devices, ranks)
    with patch.object(stepper, "step", step):
        return stepper.time([STEP] * steps)


def no_step(indices: object, *, unsynced: bool) -> torch.Tensor:
    return torch.ones(1)


def test_a_window_is_read_off_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its readings are between the barriers, so that a slow rank shows in its own window only."""
    clock = [10.0, 10.0, 10.5, 11.5, 13.5, 13.5]
    left: list[int] = []
    for module in (device, window):
        monkeypatch.setattr(module, "perf_counter", lambda: clock.pop(0))
    ranks = Mock(barrier=lambda: left.append(len(clock)))
    timing = timed(no_step, 3, ranks=ranks)
    assert timing.seconds == 3.5
    assert (timing.samples, timing.losses) == (3 * 7, (1.0,) * 3)
    assert timing.step_seconds == (0.5, 1.0, 2.0)
    assert left == [6, 0]  # the clock is read at the ends of steps and nowhere else


def test_a_window_on_a_gpu_waits_for_all_devices_at_its_ends_and_times_steps_on_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda = RecordingCuda()
    monkeypatch.setattr(device, "cuda", cuda)
    put_into_parallel(cuda, monkeypatch)
    put_nvml(None, monkeypatch)

    durations = iter((0.5, 2.0))

    def step(indices: object, *, unsynced: bool) -> torch.Tensor:
        cuda.calls.append("step")
        cuda.now += next(durations)
        return torch.zeros(())

    timing = timed(step, 2, [GPU, torch.device("cuda:2")])
    wait, record = ["synchronize cuda:1", "synchronize cuda:2"], "record on stream of cuda:1"
    assert cuda.calls == [*wait, record, "step", record, "step", record, *wait]
    assert timing.step_seconds == (0.5, 2.0)


def test_garbage_is_collected_before_the_window_and_not_in_it() -> None:
    collections: list[str] = []
    before_steps: list[list[str]] = []
    enabled: list[bool] = []

    def step(indices: object, *, unsynced: bool) -> torch.Tensor:
        before_steps.append(list(collections))
        enabled.append(gc.isenabled())
        assert [[indices] for _ in range(10 * gc.get_threshold()[0])]  # would set off several
        return torch.zeros(())

    def note(phase: str, info: dict[str, int]) -> None:
        collections.append(phase)

    gc.callbacks.append(note)
    timed(step, 3)
    gc.callbacks.remove(note)
    assert before_steps == [["start", "stop"]] * 3
    assert enabled == [False] * 3
    assert gc.isenabled()
