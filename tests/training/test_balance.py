"""The speed of a rank's forward passes, and the shares that follow from the speeds."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dpbench.training import balance
from dpbench.training.balance import ForwardTimer, agreed_shares


def timed(monkeypatch: pytest.MonkeyPatch, *marks: float) -> tuple[torch.nn.Module, ForwardTimer]:
    """A module whose clock shows these, one after the other."""
    clock = iter(marks)
    monkeypatch.setattr(balance, "perf_counter", lambda: next(clock))
    module = torch.nn.Linear(2, 1)
    return module, ForwardTimer(module, torch.device("cpu"))


def test_the_speed_is_that_of_the_median_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 samples in 8 s while everything is set up, then 4 in 0.2 s, and the rest of 2 in 0.2 s."""
    module, timer = timed(monkeypatch, 0.0, 8.0, 10.0, 10.2, 20.0, 20.2, 30.0, 30.2)
    for samples in (4, 4, 4, 2):
        module(torch.zeros(samples, 2))
    assert timer.take_samples_per_second() == pytest.approx(1 / 0.075)  # of 0.05, 0.05, 0.1, 2


def test_all_ranks_compute_the_same_shares_from_the_same_speeds() -> None:
    class Rehearsed:
        def gather(self, values: list[float]) -> list[list[float]]:
            return [[300.0], values]

    ranks: Any = Rehearsed()
    assert agreed_shares(100.0, ranks) == (0.75, 0.25)
