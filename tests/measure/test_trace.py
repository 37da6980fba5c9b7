"""A timeline is a file that a viewer opens, with our names in it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import torch

from dpbench.data.datasets import Dataset
from dpbench.measure.implementations import Plain
from dpbench.measure.rank_group import RankGroup
from dpbench.measure.trace import trace_path, write_trace
from dpbench.measure.training import Trainer
from tests.builders import trial_spec
from tests.launch.faulty import Healthy


def test_a_trace_names_the_phases_of_every_step(tmp_path: Path) -> None:
    trial = trial_spec(trace_steps=2)
    path = trace_path(tmp_path / "new", trial, 1)
    module = Healthy().build_model()
    sgd = torch.optim.SGD(module.parameters(), lr=0.1)
    samples = Dataset(inputs=torch.ones(8, 4), targets=torch.ones(8, 2))
    trainer = Trainer(Plain(module), sgd, Healthy(), samples, 1)
    alone = RankGroup(size=1, control=None)
    write_trace(path, trainer, [[torch.arange(4)]] * 2, torch.device("cpu"), alone)
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
