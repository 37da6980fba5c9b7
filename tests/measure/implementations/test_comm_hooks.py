"""Gradients that travel smaller: what is lost, and that all ranks lose the same."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from dpbench.measure.implementations import wrap
from dpbench.measure.implementations.comm_hooks import POWER_SGD_FIRST_STEP
from tests.builders import configuration
from tests.parallel.ranks import run_ranks

NAMES = ("ddp", "torch-ddp", "torch-ddp-static")
STEPS = 5
SMALL_MB = 0.005
"""A bucket for each layer."""


def gradients(implementation: str, hook: str, rank: int) -> list[Tensor]:
    """Of each step, of two layers: 2 × 1,056 numbers."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32))
    settings = configuration(implementation=implementation, comm_hook=hook, bucket_cap_mb=SMALL_MB)
    model = wrap(module, settings, rank)
    found = []
    for step in range(STEPS):
        module.zero_grad()
        generator = torch.Generator().manual_seed(2 * step + rank)
        model.backward(model.forward(torch.randn(8, 32, generator=generator)).pow(2).mean())
        grads = [parameter.grad for parameter in module.parameters()]
        found.append(torch.cat([grad.flatten().clone() for grad in grads if grad is not None]))
    assert (model.reduced_bytes() is not None) == (implementation == "ddp" and hook == "none")
    return found


def errors(rank: int) -> dict[str, list[float]]:
    """The relative error of each step's gradients."""
    found = {}
    for name in NAMES:
        pairs = zip(gradients(name, "powersgd", rank), gradients(name, "none", rank), strict=True)
        found[name] = [float((lossy - exact).norm() / exact.norm()) for lossy, exact in pairs]
    return found


def test_power_sgd_compresses_from_its_first_step_on(tmp_path: Path) -> None:
    first, second = run_ranks(errors, tmp_path / "store")
    assert first == second, "all ranks have the same gradients, whatever was lost"
    for found in first.values():
        assert max(found[:POWER_SGD_FIRST_STEP]) < 1e-6
        assert min(found[POWER_SGD_FIRST_STEP:]) > 0.1
