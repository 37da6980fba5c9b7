"""When gradients are ready, on a clock that stands still until somebody works."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from dpbench.data.datasets import Dataset
from dpbench.measure import gradient_trace
from dpbench.measure.gradient_trace import CudaTraceClock, HostTraceClock, trace_gradients
from dpbench.measure.implementations import Plain
from dpbench.measure.rank_group import RankGroup
from dpbench.measure.step import Trainer
from dpbench.records.trial import GradientTrace
from tests.launch.faulty import Healthy

CPU = torch.device("cpu")
ALONE = RankGroup(size=1, control=None)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(HostTraceClock, "now", staticmethod(clock))
    return clock


class Busy(torch.autograd.Function):
    """The identity, whose backward pass takes some seconds."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, clock: Clock, seconds: float) -> torch.Tensor:
        ctx.clock, ctx.seconds = clock, seconds
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        ctx.clock.now += ctx.seconds
        return gradients[0], None, None


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
        hidden = Busy.apply(self.first(inputs), self.clock, 16.0)  # type: ignore[no-untyped-call]
        return Busy.apply(self.second(hidden), self.clock, 8.0)  # type: ignore[no-untyped-call,no-any-return]


class SlowSGD(torch.optim.SGD):
    """1 s to zero gradients, 64 s to change parameters."""

    clock: Clock

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.clock.now += 1
        super().zero_grad(set_to_none)

    def step(self, closure: Any = None) -> Any:
        self.clock.now += 64
        return super().step(closure)


class Finishing(Plain):
    """Waits 32 s for gradients when the backward pass has returned."""

    def finish(self) -> None:
        self.module.clock.now += 32


def trainer(module: nn.Module, model: Plain, optimizer: torch.optim.Optimizer) -> Trainer:
    samples = Dataset(inputs=torch.ones(8, 4), targets=torch.ones(8, 2))
    return Trainer(model, optimizer, Healthy(), samples, 2)


def traced(module: nn.Module, steps: int = 2) -> GradientTrace | None:
    training = trainer(module, Plain(module), torch.optim.SGD(module.parameters(), lr=0.1))
    batches = [[torch.arange(4)] * 2] * (2 * steps)
    return trace_gradients(training, module, batches, CPU, ALONE)


def test_every_gradient_is_noted_when_it_is_there(clock: Clock) -> None:
    """1 s of zeroing and 4 s forward; 8 s; 16 s; 32 s until backward ends; 64 s of optimizer."""
    module = TwoLayers(clock)
    optimizer = SlowSGD(module.parameters(), lr=0.1)
    optimizer.clock = clock
    training = trainer(module, Finishing(module), optimizer)
    found = trace_gradients(training, module, [[torch.arange(4)] * 2] * 4, CPU, ALONE)
    assert found == GradientTrace(
        parameters=("first.weight", "first.bias", "second.weight"),
        gradient_bytes=(48, 12, 24),
        gradient_dtypes=("float32",) * 3,
        ready_seconds=((29.0, 29.0, 13.0),) * 2,
        backward_start_seconds=(5.0, 5.0),
        backward_end_seconds=(61.0, 61.0),
        step_seconds=(125.0, 125.0),
        untraced_step_seconds=(125.0, 125.0),
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
        self.narrow = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
        self.forwards = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.forwards += 1
        hidden = self.again(self.shared(inputs * self.frozen))
        if self.forwards <= 2:
            hidden = hidden * self.first_time_only
        rows = self.table(torch.zeros(len(inputs), dtype=torch.long))
        return hidden[:, :2] + rows + self.narrow.float()  # type: ignore[no-any-return]


def test_parameters_count_once_and_only_if_every_step_gives_them_a_gradient() -> None:
    """The sparse gradient of one row counts as the whole table: 10 × 2 × 4 bytes."""
    found = traced(Odd())
    assert found is not None
    assert dict(zip(found.parameters, found.gradient_bytes, strict=True)) == {
        "narrow": 4,
        "table.weight": 80,
        "shared.weight": 64,
        "shared.bias": 16,
    }
    assert found.gradient_dtypes[found.parameters.index("narrow")] == "bfloat16"
    for step, start, end in zip(
        found.ready_seconds, found.backward_start_seconds, found.backward_end_seconds, strict=True
    ):
        assert all(start < ready < end for ready in step)


class FakeEvent:
    """Elapses 500 ms between any two events that were recorded one after the other."""

    recorded = 0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.number: int | None = None

    def record(self) -> None:
        FakeEvent.recorded += 1
        self.number = FakeEvent.recorded

    def elapsed_time(self, end: FakeEvent) -> float:
        assert self.number is not None
        assert end.number is not None
        return 500.0 * (end.number - self.number)


def test_on_cuda_events_are_recorded_and_only_read_when_the_device_is_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Recorded: start, zeroing, backward, the gradient, its end, the end; or start and end."""
    idle: list[int] = []
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(gradient_trace, "HostTraceClock", CudaTraceClock)
    monkeypatch.setattr(
        gradient_trace, "synchronize", lambda device: idle.append(FakeEvent.recorded)
    )
    elapsed = FakeEvent.elapsed_time

    def only_when_idle(self: FakeEvent, end: FakeEvent) -> float:
        assert idle == [FakeEvent.recorded]
        return elapsed(self, end)

    monkeypatch.setattr(FakeEvent, "elapsed_time", only_when_idle)
    found = traced(nn.Linear(4, 2, bias=False), steps=1)
    assert found is not None
    assert found.backward_start_seconds == (1.0,)
    assert found.ready_seconds == ((1.5,),)
    assert found.backward_end_seconds == (2.0,)
    assert found.step_seconds == (2.5,)
    assert found.untraced_step_seconds == (0.5,)
