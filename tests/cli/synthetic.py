"""Runs `dpbench` in this process on the synthetic launcher, with a noise between whole runs."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from dpbench.cli.app import run
from dpbench.specs import TrialSpec
from tests.launch import synthetic

Slow = Callable[[TrialSpec], float]


def make_noisy(monkeypatch: pytest.MonkeyPatch, spread: float, slow: Slow = lambda _: 1.0) -> None:
    """Every run takes its own log-normal factor of time, times `slow` of its trial."""
    window = synthetic.window
    sequence = random.Random(6)
    factors: dict[str, float] = {}

    def noisy(trial: TrialSpec, rank: int, seconds: float, noise: random.Random, *rest: object):
        factor = factors.setdefault(trial.trial_id, sequence.lognormvariate(0.0, spread))
        return window(trial, rank, seconds * factor * slow(trial), noise, *rest)

    monkeypatch.setattr(synthetic, "window", noisy)


def dpbench(*arguments: object) -> int:
    with synthetic.in_use():
        return run([*map(str, arguments)])
