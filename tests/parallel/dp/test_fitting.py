"""fit and predict: every replica does its part, and the result is that of one device."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from dpbench.parallel import fit, predict
from dpbench.parallel.dp.fitting import accumulate
from tests.parallel.dp.modules import (
    F64,
    Losses,
    assert_same,
    batch,
    gradients,
    parallel,
    perceptron,
)

BATCH, TARGETS = batch(10), torch.linspace(0, 1, 40, dtype=F64).view(10, 4)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("sizes", [(4, 4, 2), (1, 9), (10,)])
def test_unequal_micro_batches_equal_the_large_batch(
    reduction: Any, sizes: tuple[int, ...]
) -> None:
    module = Losses(reduction)
    expected_loss = module(BATCH, targets=TARGETS)[1]
    expected_loss.backward()
    expected = gradients(module)
    wrapper = parallel(module, 3, loss_reduction=reduction)
    parts = zip(BATCH.split(sizes), TARGETS.split(sizes), strict=True)
    batches = [{"x": x, "targets": y} for x, y in parts]
    for _ in range(2):
        module.zero_grad()
        loss = accumulate(wrapper, batches)
        torch.testing.assert_close(loss, expected_loss.detach(), rtol=1e-12, atol=1e-12)
        assert not loss.requires_grad
        assert_same(gradients(module), expected)


def test_equal_steps_by_hand_equal_the_large_batch() -> None:
    module, steps = Losses(), 5
    wrapper = parallel(module, 2)
    module(BATCH, targets=TARGETS)[1].backward()
    expected = gradients(module)
    for _ in range(2):
        module.zero_grad()
        for part, targets in zip(BATCH.chunk(steps), TARGETS.chunk(steps), strict=True):
            wrapper(part, targets=targets)
            wrapper.backward(scale=1.0 / steps)
        assert_same(gradients(module), expected)


BATCHES = list(zip(BATCH.split(4), TARGETS.split(4), strict=True))


class Counting(nn.Module):
    """Counts its calls, and their samples, by the thread that makes them: one per replica."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = perceptron()
        self.calls: Counter[str] = Counter()
        self.samples: Counter[str] = Counter()

    def forward(self, x: Tensor) -> Tensor:
        thread = threading.current_thread().name
        self.calls[thread] += 1
        self.samples[thread] += len(x)
        result: Tensor = self.inner(x)
        return result


def test_each_replica_is_called_once_for_each_batch() -> None:
    module = Counting()
    wrapper = parallel(module, 2)
    fit(wrapper, BATCHES, torch.optim.SGD(wrapper.parameters(), lr=0.1), F.mse_loss, epochs=2)
    predict(wrapper, [x for x, _ in BATCHES])
    names = ["dpbench-replica-0_0", "dpbench-replica-1_0"]
    assert module.calls == dict.fromkeys(names, 9)
    assert module.samples == dict.fromkeys(names, 15)


@pytest.mark.parametrize("replicas", [1, 3])
def test_training_gives_the_weights_losses_and_outputs_of_one_device(replicas: int) -> None:
    module, alone = perceptron(), perceptron()
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    expected = []
    for _ in range(2):
        total = 0.0
        for x, y in BATCHES:
            optimizer.zero_grad()
            loss = F.mse_loss(alone(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(x)
        expected.append(total / 10)
    wrapper = parallel(module, replicas)
    loader = DataLoader(TensorDataset(BATCH, TARGETS), batch_size=4)
    mine = torch.optim.SGD(wrapper.parameters(), lr=0.1)
    assert fit(wrapper, loader, mine, F.mse_loss, epochs=2) == pytest.approx(expected, rel=1e-12)
    assert_same(list(module.parameters()), list(alone.parameters()))
    assert_same([predict(wrapper, BATCH.split(3))], [alone(BATCH)])
