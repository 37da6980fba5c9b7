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

from dpbench.data.datasets import Dataset
from dpbench.measure.rank_group import RankGroup
from dpbench.training.evaluation import BLOCK_SAMPLES, Score, evaluate
from tests.training.jobs import ALONE, ranks_here

SAMPLES = 2 * BLOCK_SAMPLES + 88
"""Three blocks for two ranks; the last one is not full."""
GROUP_TIMEOUT_SECONDS = 2.0


class Plain:
    """The loss is the mean output."""

    name = "plain"
    item = "rows"
    default_dataset = "synthetic"

    def build_model(self) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(7, 64), nn.BatchNorm1d(64), nn.Dropout(0.5), nn.Linear(64, 5)
        )

    def synthetic_batch(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return torch.randn(n, 7, generator=generator), torch.randint(5, (n,), generator=generator)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.mean()


class Counting(Plain):
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets)

    def count_correct(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.argmax(dim=1) == targets).sum()


def samples(count: int = SAMPLES) -> Dataset:
    inputs, targets = Plain().synthetic_batch(count, torch.Generator().manual_seed(1))
    return Dataset(inputs=inputs, targets=targets)


def score(module: nn.Module, of: Plain, test: Dataset, **options: Any) -> Score:
    defaults = {
        "device": torch.device("cpu"),
        "ranks": ALONE,
        "how": "sharded",
        "dtype": "f32",
    }
    return evaluate(module, of, test, **{**defaults, **options})


def test_the_loss_is_the_mean_over_all_samples() -> None:
    numbers = torch.arange(float(SAMPLES))  # 0 to 599
    test = Dataset(inputs=numbers, targets=torch.zeros(SAMPLES))
    assert score(nn.Identity(), Plain(), test) == Score(loss=299.5, correct=None, total=SAMPLES)


def test_right_targets_are_counted() -> None:
    inputs = torch.eye(5).repeat(SAMPLES // 5, 1)  # says 0, 1, 2, 3, 4, 0, 1, …
    test = Dataset(inputs=inputs, targets=torch.full((SAMPLES,), 3))
    found = score(nn.Identity(), Counting(), test)
    assert (found.correct, found.total, found.accuracy) == (SAMPLES // 5, SAMPLES, 0.2)
    assert found.loss == pytest.approx((5 * math.log(math.e + 4) - 1) / 5)


def test_nothing_that_training_uses_is_changed() -> None:
    module = Plain().build_model().train()
    module[1].eval()  # frozen statistics
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    seen = []
    hook = module.register_forward_pre_hook(lambda *_: seen.append(torch.rand(1)))
    first = score(module, Counting(), samples())
    hook.remove()
    assert len(seen) == 3
    assert torch.equal(torch.rand(3), expected)
    assert [child.training for child in module] == [True, False, True, True]
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())
    assert score(module.eval(), Counting(), samples()) == first


def test_the_best_has_the_highest_accuracy_or_else_the_lowest_loss() -> None:
    counted = Score(loss=9.0, correct=3, total=4)
    assert counted.metric == 0.75
    assert [counted.improves(best) for best in (None, 0.7, 0.75, 0.8)] == [True, True, False, False]
    lossy = Score(loss=2.0, correct=None, total=4)
    assert lossy.metric == -2.0
    assert [lossy.improves(best) for best in (None, -2.1, -2.0, -1.9)] == [True, True, False, False]


def test_a_loss_that_is_no_number_is_never_the_best() -> None:
    test = Dataset(inputs=torch.full((SAMPLES,), math.nan), targets=torch.zeros(SAMPLES))
    assert math.isnan(score(nn.Identity(), Plain(), test).loss)
    for loss in (math.nan, math.inf):
        assert not Score(loss=loss, correct=4, total=4).improves(None)


def one_process_rank_0_and_all_ranks_give_the_same_bits(rank: int) -> None:
    module = Counting().build_model()
    module(torch.randn(9, 7))  # statistics other than at the start
    for count in (SAMPLES, 40, BLOCK_SAMPLES):
        alone = score(module, Counting(), samples(count))
        for how in ("sharded", "rank0"):
            found = score(module, Counting(), samples(count), ranks=ranks_here(), how=how)
            assert asdict(found) == asdict(alone)
            assert found.loss.hex() == alone.loss.hex()
    assert module.training


class Slow(Plain):
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        time.sleep(1.2 * GROUP_TIMEOUT_SECONDS)
        return outputs.mean()


def rank_0_may_take_longer_than_a_collective(rank: int) -> None:
    impatient = dist.new_group(timeout=timedelta(seconds=GROUP_TIMEOUT_SECONDS))
    ranks = RankGroup(size=2, control=impatient)
    found = score(Slow().build_model(), Slow(), samples(3), ranks=ranks, how="rank0")
    assert found.total == 3
    dist.all_reduce(torch.ones(1), group=impatient)  # it still works


@pytest.mark.gpu
def test_a_device_gives_nearly_the_loss_of_the_cpu() -> None:
    device = torch.device("cuda:0")
    module = Counting().build_model()
    expected = score(module, Counting(), samples())
    found = score(module.to(device), Counting(), samples(), device=device)
    assert found.loss == pytest.approx(expected.loss, rel=1e-4)
    assert found.total == expected.total


ON_TWO_RANKS = [
    one_process_rank_0_and_all_ranks_give_the_same_bits,
    rank_0_may_take_longer_than_a_collective,
]
"""Tests that run in the world of test_rank.py."""
