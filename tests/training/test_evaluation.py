from __future__ import annotations

import math
import time
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from dpbench.architecture import Architecture
from dpbench.data.datasets import Dataset
from dpbench.rendezvous.process_group import RankGroup
from dpbench.training.evaluation import BLOCK_SAMPLES, evaluate
from dpbench.training.events import Score
from tests.launch.faulty import Healthy
from tests.training.jobs import ALONE, Noisy, ranks_here

SAMPLES = 2 * BLOCK_SAMPLES + 88
"""Three blocks for two ranks; the last one is not full."""
GROUP_TIMEOUT_SECONDS = 2.0


class MeanOutput(Healthy):
    """The loss is the mean output, and no answer is right or wrong."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.mean()


def noisy_model() -> nn.Module:
    """With batch normalization and dropout."""
    torch.manual_seed(0)
    return Noisy().build_model()


def samples(count: int = SAMPLES) -> Dataset:
    inputs, targets = Noisy().synthetic_batch(count, torch.Generator().manual_seed(1))
    return Dataset(inputs=inputs, targets=targets)


def score(module: nn.Module, of: Architecture, test: Dataset, **options: Any) -> Score:
    defaults = {"device": torch.device("cpu"), "ranks": ALONE, "how": "sharded", "dtype": "f32"}
    return evaluate(module, of, test, **{**defaults, **options})


def test_the_loss_is_the_mean_over_all_samples() -> None:
    numbers = torch.arange(float(SAMPLES))  # 0 to 599
    test = Dataset(inputs=numbers, targets=torch.zeros(SAMPLES))
    assert score(nn.Identity(), MeanOutput(), test) == Score(
        loss=299.5, correct=None, total=SAMPLES
    )


def test_right_targets_are_counted() -> None:
    inputs = torch.eye(5).repeat(SAMPLES // 5, 1)  # says 0, 1, 2, 3, 4, 0, 1, …
    test = Dataset(inputs=inputs, targets=torch.full((SAMPLES,), 3))
    found = score(nn.Identity(), Noisy(), test)
    assert (found.correct, found.total, found.accuracy) == (SAMPLES // 5, SAMPLES, 0.2)
    assert found.loss == pytest.approx((5 * math.log(math.e + 4) - 1) / 5)


def test_nothing_that_training_uses_is_changed() -> None:
    module = noisy_model().train()
    module[1].eval()  # frozen statistics
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    seen = []
    hook = module.register_forward_pre_hook(lambda *_: seen.append(torch.rand(1)))
    first = score(module, Noisy(), samples())
    hook.remove()
    assert len(seen) == 3
    assert torch.equal(torch.rand(3), expected)
    assert [child.training for child in module] == [True, False, True, True, True]
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())
    assert score(module.eval(), Noisy(), samples()) == first


def test_the_best_has_the_highest_accuracy_or_else_the_lowest_loss() -> None:
    counted = Score(loss=9.0, correct=3, total=4)
    assert counted.metric == 0.75
    assert [counted.improves(best) for best in (None, 0.7, 0.75, 0.8)] == [True, True, False, False]
    lossy = Score(loss=2.0, correct=None, total=4)
    assert lossy.metric == -2.0
    assert [lossy.improves(best) for best in (None, -2.1, -2.0, -1.9)] == [True, True, False, False]
    for loss in (math.nan, math.inf):
        assert not Score(loss=loss, correct=4, total=4).improves(None)


def one_process_rank_0_and_all_ranks_give_the_same_bits(rank: int) -> None:
    module = noisy_model()
    module(torch.randn(9, 4))  # statistics other than at the start
    for count in (SAMPLES, 40, BLOCK_SAMPLES):
        alone = score(module, Noisy(), samples(count))
        for how in ("sharded", "rank0"):
            found = score(module, Noisy(), samples(count), ranks=ranks_here(), how=how)
            assert asdict(found) == asdict(alone)
            assert found.loss.hex() == alone.loss.hex()
    assert module.training


class Slow(MeanOutput):
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        time.sleep(1.2 * GROUP_TIMEOUT_SECONDS)
        return outputs.mean()


def rank_0_may_take_longer_than_a_collective(rank: int) -> None:
    impatient = dist.new_group(timeout=timedelta(seconds=GROUP_TIMEOUT_SECONDS))
    ranks = RankGroup(impatient)
    found = score(Slow().build_model(), Slow(), samples(3), ranks=ranks, how="rank0")
    assert found.total == 3
    dist.all_reduce(torch.ones(1), group=impatient)  # it still works


@pytest.mark.gpu
def test_a_device_gives_nearly_the_loss_of_the_cpu() -> None:
    device = torch.device("cuda:0")
    module = noisy_model()
    expected = score(module, Noisy(), samples())
    found = score(module.to(device), Noisy(), samples(), device=device)
    assert found.loss == pytest.approx(expected.loss, rel=1e-4)
    assert found.total == expected.total


ON_TWO_RANKS = [
    one_process_rank_0_and_all_ranks_give_the_same_bits,
    rank_0_may_take_longer_than_a_collective,
]
"""Tests that run in the world of test_rank.py."""
