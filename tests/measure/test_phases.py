"""Every second of an instrumented step belongs to one phase, and to the right one."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from dpbench.data.datasets import Dataset
from dpbench.measure import phases
from dpbench.measure.implementations import Plain
from dpbench.measure.phases import time_phases, trace_path, write_trace
from dpbench.measure.rank_group import RankGroup
from dpbench.measure.step import Trainer
from tests.builders import trial_spec
from tests.launch.faulty import Healthy

CPU = torch.device("cpu")
ALONE = RankGroup(size=1, control=None)


class Clock:
    """Stands still until somebody works."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(phases, "perf_counter", clock)
    return clock


class Working(Plain):
    """Takes 1 s forward, 2 s to finish gradients and, with synchronization, 4 s after the step."""

    def __init__(self, module: torch.nn.Module, clock: Clock) -> None:
        super().__init__(module)
        self.clock = clock

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.clock.now += 1
        return super().forward(inputs)

    def finish(self) -> None:
        self.clock.now += 2

    def after_step(self) -> None:
        self.clock.now += 4


class SlowSGD(torch.optim.SGD):
    """8 s to zero gradients, 16 s to change parameters."""

    clock: Clock

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.clock.now += 8
        super().zero_grad(set_to_none)

    def step(self, closure: Any = None) -> Any:
        self.clock.now += 16
        return super().step(closure)


class SlowDataset(Dataset):
    """32 s for an index of the inputs; defined over a plain one."""

    clock: Clock

    def __getattribute__(self, name: str) -> Any:
        if name == "inputs":
            SlowDataset.clock.now += 32
        return super().__getattribute__(name)


def trainer(clock: Clock, accumulation_steps: int = 1) -> Trainer:
    module = Healthy().build_model()
    optimizer = SlowSGD(module.parameters(), lr=0.1)
    optimizer.clock = SlowDataset.clock = clock
    samples = SlowDataset(inputs=torch.ones(8, 4), targets=torch.ones(8, 2))
    return Trainer(Working(module, clock), optimizer, Healthy(), samples, accumulation_steps)


@pytest.mark.parametrize(("sync", "backward"), [(True, 6.0), (False, 2.0)])
def test_each_part_is_counted_in_its_phase(clock: Clock, sync: bool, backward: float) -> None:
    training = trainer(clock)
    measured, _ = time_phases(training, [[torch.arange(4)]] * 2, CPU, ALONE, sync=sync)
    assert measured.data_seconds == (32.0, 32.0)
    assert measured.forward_seconds == (1.0, 1.0)
    assert measured.backward_seconds == (backward, backward)
    assert measured.optimizer_seconds == (24.0, 24.0)
    assert (training.steps, training.take_losses()) == (2, ())


def test_a_trace_names_the_phases_of_every_step(tmp_path: Path) -> None:
    trial = trial_spec(trace_steps=2)
    path = trace_path(tmp_path / "new", trial, 1)
    module = Healthy().build_model()
    sgd = torch.optim.SGD(module.parameters(), lr=0.1)
    samples = Dataset(inputs=torch.ones(8, 4), targets=torch.ones(8, 2))
    trainer = Trainer(Plain(module), sgd, Healthy(), samples, 1)
    write_trace(path, trainer, [[torch.arange(4)]] * 2, CPU, ALONE)
    assert path.name == f"trace-{trial.trial_id}-rank1.json"
    events = json.loads(path.read_text())["traceEvents"]
    names = Counter(event["name"] for event in events if event.get("cat") == "user_annotation")
    assert {name: names[name] for name in ("step", "data", "forward")} == {
        "step": 2,
        "data": 2,
        "forward": 2,
    }
    assert names["backward"] >= 2
    assert names["optimizer"] >= 2
    assert any(event["name"] == "aten::linear" for event in events)
    assert (trainer.steps, trainer.take_losses()) == (2, ())
