"""Steps of plain SGD on synthetic batches, and counts of operations, for any architecture."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from dpbench.architecture import Architecture
from dpbench.data.batch import Samples, call

SAMPLES = 4


def loss_before_and_after(
    architecture: Architecture, steps: int, *, learning_rate: float = 0.05
) -> tuple[float, float]:
    """The loss on samples not trained on, without dropout, before and after `steps` steps."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = architecture.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    held_out = architecture.synthetic_batch(32, torch.Generator().manual_seed(2))
    before = _loss(architecture, model, held_out)
    for _ in range(steps):
        inputs, targets = architecture.synthetic_batch(32, generator)
        optimizer.zero_grad()
        torch.autograd.backward(architecture.loss(call(model.train(), inputs), targets))
        optimizer.step()
    return before, _loss(architecture, model, held_out)


def counted_flops(architecture: Architecture, *, backward: bool) -> float:
    """What torch counts for one sample."""
    model = architecture.build_model()
    inputs, targets = architecture.synthetic_batch(SAMPLES, torch.Generator().manual_seed(0))
    with FlopCounterMode(display=False) as counter:
        loss = architecture.loss(call(model, inputs), targets)
        if backward:
            torch.autograd.backward(loss)
    return float(counter.get_total_flops() / SAMPLES)


def _loss(
    architecture: Architecture,
    model: torch.nn.Module,
    batch: tuple[Samples, Samples],
) -> float:
    with torch.no_grad():
        loss: float = architecture.loss(call(model.eval(), batch[0]), batch[1]).item()
    return loss
