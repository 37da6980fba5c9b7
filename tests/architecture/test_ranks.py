"""A model of somebody's file, with dicts as inputs, outputs and targets, on two real ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dpbench.launch.host_launcher import HostLauncher
from dpbench.launch.machine import inspect_machine
from dpbench.records.trial import Status
from tests.builders import WORKLOAD, trial_spec

NET = """
import torch
from torch import nn
from parts_of_the_net import Head

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embedding = nn.Embedding(50, width)
        self.head = Head(width)
    def forward(self, *, tokens, scale):
        return {"score": self.head(self.embedding(tokens).mean(1)).squeeze(1) * scale}

def batch(n, generator=None):
    tokens = torch.randint(50, (n, 7), generator=generator)
    scale = torch.rand(n, generator=generator)
    return {"tokens": tokens, "scale": scale}, {"score": tokens.float().mean(1) * scale}

def loss(outputs, targets):
    return nn.functional.mse_loss(outputs["score"], targets["score"])

def make(*, width: int = 8):
    return Net(width), batch, loss
"""
PARTS = """
from torch import nn

class Head(nn.Linear):
    def __init__(self, width):
        super().__init__(width, 1)
"""


def test_two_ranks_train_it_with_the_gradients_of_one_process(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "parts_of_the_net.py").write_text(PARTS)
    workload = replace(
        WORKLOAD, architecture=f"{tmp_path}/net.py:make:width=4", dataset="synthetic"
    )
    trial = trial_spec(
        workload=workload, implementation="ddp", backend="gloo", group_size=2, batch_size=5
    )
    launcher = HostLauncher(inspect_machine(), tmp_path / "logs")
    outcome = launcher.run(trial, 60)
    assert (outcome.reason, outcome.status) == (None, Status.COMPLETED)
    assert outcome.verification is not None
    assert outcome.verification.passed
    assert outcome.item == "samples"
    # Forward and backward of the head alone: 4 multiply-adds, and as many for each of 2 gradients.
    assert outcome.flops_per_item == 3 * 2 * 4
