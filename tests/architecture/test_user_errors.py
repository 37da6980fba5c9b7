"""Random numbers of a user's code repeat, and those of everything else go on."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from dpbench.architecture.user_errors import seeded


def drawn() -> list[float]:
    return [torch.rand(()).item(), random.random(), float(np.random.rand())]


def test_numbers_repeat_inside_and_go_on_outside() -> None:
    before = torch.get_rng_state(), random.getstate()
    with seeded(3):
        first = drawn()
    with seeded(3):
        assert drawn() == first
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


def test_generators_of_gpus_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeding them as torch.manual_seed does could not be undone without starting CUDA."""
    seeds: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    with seeded(3):
        torch.rand(())
    assert seeds == []
