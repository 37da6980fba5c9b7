"""Gradients that travel smaller: what is lost, and that all ranks lose the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dpbench.measure.implementations import wrap
from dpbench.measure.implementations.comm_hooks import POWER_SGD_FIRST_STEP
from tests.builders import trial_spec
from tests.parallel.ranks import run_ranks

NAMES = ("ddp", "torch-ddp", "torch-ddp-static")
STEPS = 5
SMALL_MB = 0.005
"""A bucket for each layer."""

Run = tuple[str, str]


def gradients(implementation: str, hook: str, rank: int) -> list[Tensor]:
    """Of each step, of two layers: 2 × 1,056 numbers."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32))
    trial = trial_spec(implementation=implementation, comm_hook=hook, bucket_cap_mb=SMALL_MB)
    model = wrap(module, trial, rank)
    found = []
    for step in range(STEPS):
        module.zero_grad()
        generator = torch.Generator().manual_seed(2 * step + rank)
        model.backward(model.forward(torch.randn(8, 32, generator=generator)).pow(2).mean())
        grads = [parameter.grad for parameter in module.parameters()]
        found.append(torch.cat([grad.flatten().clone() for grad in grads if grad is not None]))
    assert (model.communication() is not None) == (implementation == "ddp" and hook == "none")
    return found


def all_runs(rank: int) -> dict[Run, list[list[float]]]:
    runs: dict[Run, list[Tensor]] = {
        (name, hook): gradients(name, hook, rank) for name in NAMES for hook in ("none", "powersgd")
    }
    return {run: [step.tolist() for step in steps] for run, steps in runs.items()}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[Run, list[Tensor]]:
    store = tmp_path_factory.mktemp("hooks") / "store"
    first, second = run_ranks(all_runs, store)
    assert first == second, "all ranks have the same gradients, whatever was lost"
    return {run: [torch.tensor(step) for step in steps] for run, steps in first.items()}


def errors(runs: dict[Run, list[Tensor]], name: str, hook: str) -> list[float]:
    pairs = zip(runs[name, hook], runs[name, "none"], strict=True)
    return [float((lossy - exact).norm() / exact.norm()) for lossy, exact in pairs]


@pytest.mark.parametrize("name", NAMES)
def test_power_sgd_compresses_from_its_first_step_on(
    runs: dict[Run, list[Tensor]], name: str
) -> None:
    found = errors(runs, name, "powersgd")
    assert max(found[:POWER_SGD_FIRST_STEP]) < 1e-6
    assert min(found[POWER_SGD_FIRST_STEP:]) > 0.1
