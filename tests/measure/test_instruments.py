"""Phases, gradients and timelines of instrumented steps, on a clock that only work advances."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from dpbench.architecture import load_architecture
from dpbench.data.datasets import Dataset
from dpbench.measure import device, instruments, window
from dpbench.measure.implementations import Plain
from dpbench.measure.instruments import flops_per_item, time_phases, trace_gradients
from dpbench.measure.rank_model import RankModel
from dpbench.measure.step import BenchmarkStepper
from dpbench.records.trial import GradientTrace, Mode
from tests.launch.faulty import Healthy
from tests.recording_cuda import GPU, RecordingCuda, put_into_parallel

CPU = torch.device("cpu")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now

    def taking(self, seconds: float, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, after which the clock has advanced."""

        def slow(*arguments: Any, **options: Any) -> Any:
            result = function(*arguments, **options)
            self.now += seconds
            return result

        return slow


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(device, "perf_counter", clock)
    monkeypatch.setattr(window, "perf_counter", clock)
    monkeypatch.setattr(instruments, "perf_counter", clock)
    return clock


class TwoLayers(nn.Module):
    """4 s forward; back, 8 s until the second layer's gradients and 16 s more until the first's."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.first = nn.Linear(4, 3)
        self.second = nn.Linear(3, 2, bias=False)
        self.register_buffer("seen", torch.zeros(5, dtype=torch.float64))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.clock.now += 4
        hidden = self.first(inputs)
        hidden.register_hook(self.clock.taking(16, lambda gradient: gradient))
        outputs: torch.Tensor = self.second(hidden)
        outputs.register_hook(self.clock.taking(8, lambda gradient: gradient))
        return outputs


SAMPLES = Dataset(inputs=torch.ones(8, 4), targets=torch.ones(8, 2))


def stepper_of(module: nn.Module, load: Any = SAMPLES.select) -> BenchmarkStepper:
    sgd = torch.optim.SGD(module.parameters(), lr=0.1)
    model = RankModel(module=module, parallel=Plain(module), optimizer=sgd, loss=Healthy().loss)
    return BenchmarkStepper(model, load)


def slow_stepper(clock: Clock) -> BenchmarkStepper:
    """256 s for data, 1 s to zero gradients, 32 s more of waiting in backward, 64 s to change
    parameters, and 128 s after a step with synchronization."""
    slow = stepper_of(TwoLayers(clock), clock.taking(256, SAMPLES.select))
    optimizer, parallel = slow.model.optimizer, slow.model.parallel
    for owner, name, seconds in (
        (optimizer, "zero_grad", 1),
        (parallel, "backward", 32),
        (optimizer, "step", 64),
        (parallel, "after_step", 128),
    ):
        setattr(owner, name, clock.taking(seconds, getattr(owner, name)))
    return slow


@pytest.mark.parametrize(("mode", "after_step"), [("timed", 128.0), ("unsynced", 0.0)])
def test_each_part_is_counted_in_its_phase(clock: Clock, mode: Mode, after_step: float) -> None:
    stepper = slow_stepper(clock)
    measured, of_replicas = time_phases(stepper, [[torch.arange(4)]] * 2, mode)
    backward = 8.0 + 16.0 + 32.0 + after_step
    expected = {"data": 256.0, "forward": 4.0, "backward": backward, "optimizer": 65.0}
    assert measured == {phase: (seconds, seconds) for phase, seconds in expected.items()}
    assert of_replicas == {}
    assert stepper.steps == (2 if mode == "timed" else 0)


def test_each_phase_ends_when_all_gpus_are_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = RecordingCuda()
    put_into_parallel(cuda, monkeypatch)
    stepper = stepper_of(nn.Linear(4, 2))
    stepper.devices = [torch.device("cuda:0"), GPU]
    time_phases(stepper, [[torch.arange(4)]], "timed")
    changes = ("optimizer", "data", "forward", "backward", "optimizer", "after_step", None)
    waits = ["synchronize cuda:0", "synchronize cuda:1"] * len(changes)
    assert cuda.calls[len(waits) // len(changes) :][: len(waits)] == waits


def test_every_gradient_is_noted_when_it_is_ready(clock: Clock) -> None:
    """1 s of zeroing, 256 s of data, 4 s forward; 8 s; 16 s; 32 s until backward ends; 64 s of
    optimizer and 128 s after it."""
    stepper = slow_stepper(clock)
    assert trace_gradients(stepper, [[torch.arange(4)]] * 2) == GradientTrace(
        parameters=("first.weight", "first.bias", "second.weight"),
        gradient_bytes=(48, 12, 24),
        ready_seconds=((285.0, 285.0, 269.0),) * 2,
        backward_end_seconds=(317.0, 317.0),
        step_seconds=(509.0, 509.0),
        buffer_bytes=40,
    )


class Odd(nn.Module):
    """Gradients of all kinds: none, now and then, twice, sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(4))
        self.first_time_only = nn.Parameter(torch.ones(4))
        self.table = nn.Embedding(10, 2, sparse=True)
        self.shared = nn.Linear(4, 4)
        self.again = self.shared
        self.forwards = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.forwards += 1
        hidden = self.again(self.shared(inputs * self.frozen))
        if self.forwards == 1:
            hidden = hidden * self.first_time_only
        return hidden[:, :2] + self.table(torch.zeros(len(inputs), dtype=torch.long))  # type: ignore[no-any-return]


def test_parameters_count_once_and_only_if_every_step_gives_them_a_gradient() -> None:
    """The sparse gradient of one row counts as the whole table: 10 × 2 × 4 bytes."""
    module = Odd()
    found = trace_gradients(stepper_of(module), [[torch.arange(4)]] * 2)
    assert found is not None
    assert dict(zip(found.parameters, found.gradient_bytes, strict=True)) == {
        "table.weight": 80,
        "shared.weight": 64,
        "shared.bias": 16,
    }


def test_attention_and_the_layers_around_it_are_counted() -> None:
    """2 per multiply-add of 16 tokens; the backward pass takes twice the forward pass."""
    gpt = load_architecture("gpt:layers=1,width=32,heads=2,context=16,vocabulary=64")
    inputs, targets = gpt.synthetic_batch(2, torch.Generator().manual_seed(0))
    per_token = 2 * (32 * 96 + 2 * 16 * 32 + 32 * 32 + 2 * 32 * 128 + 32 * 64)
    assert flops_per_item(gpt, Dataset(inputs=inputs, targets=targets), CPU) == 3 * per_token


def test_a_model_that_cannot_be_evaluated_is_not_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Raises(Healthy):
        def build_model(self) -> nn.Module:
            raise RuntimeError("only for training")

    assert (
        flops_per_item(Raises(), Dataset(inputs=torch.ones(2), targets=torch.ones(2)), CPU) is None
    )
    assert "were not counted: only for training" in capsys.readouterr().err
