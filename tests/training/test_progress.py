"""What steps leave on the device is added up over ranks, and what is not finite is found."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from dpbench.training.learner import StepOutcome
from dpbench.training.progress import NotFinite, WindowLog, WindowValues
from tests.training.jobs import ALONE

SOUND = torch.tensor(2.0)


class Rehearsed:
    """Two ranks, of which the other's values are given."""

    def __init__(self, *theirs: float) -> None:
        self.theirs = list(theirs)

    def gather(self, values: list[float]) -> list[list[float]]:
        assert len(values) == len(self.theirs)
        return [list(values), self.theirs]


def outcome(loss_sum: float, samples: int = 2, norm: float | None = None) -> StepOutcome:
    return StepOutcome(
        torch.tensor(loss_sum, dtype=torch.float64),
        samples,
        None if norm is None else torch.tensor(norm),
    )


def log(*outcomes: StepOutcome, tolerant: bool = False) -> WindowLog:
    made = WindowLog(tolerant=tolerant)
    for one in outcomes:
        made.add(one)
    return made


def read(made: WindowLog, ranks: Any, *, epoch: int, step: int) -> WindowValues:
    """Of a sound model."""
    return made.read(ranks, epoch=epoch, step=step, largest_parameter=SOUND)


def test_losses_and_samples_are_added_up_over_ranks_step_by_step() -> None:
    ranks: Any = Rehearsed(10.0, 20.0, 1, 2, 7.0, 8.0, 1.5)
    reading = log(outcome(1.0, 3, 0.5), outcome(2.0, 4, 0.25)).read(
        ranks, epoch=1, step=2, largest_parameter=SOUND
    )
    assert reading.loss_sums == (11.0, 22.0)
    assert reading.samples == (4, 6)
    assert reading.first_rank_samples == 7
    assert reading.gradient_norm == 0.25


def test_each_step_is_read_once() -> None:
    made = log(outcome(1.0))
    assert read(made, ALONE, epoch=1, step=1).loss_sums == (1.0,)
    made.add(outcome(3.0))
    assert read(made, ALONE, epoch=1, step=2).loss_sums == (3.0,)


def test_the_first_loss_that_is_not_finite_is_named_with_its_rank() -> None:
    ranks: Any = Rehearsed(1.0, math.inf, 2, 2, 1.5)
    with pytest.raises(NotFinite, match="the loss is inf in epoch 3, step 8, on rank 1; lower"):
        log(outcome(1.0), outcome(math.nan)).read(
            _swapped(ranks), epoch=3, step=8, largest_parameter=SOUND
        )


def _swapped(ranks: Any) -> Any:
    """As seen from the other rank: what it raises must be the same."""
    original = ranks.gather
    ranks.gather = lambda values: [[1.0, 2.0, *values[2:]], original(values)[1]]
    return ranks


def test_a_gradient_counts_before_the_loss_that_follows_from_it() -> None:
    outcomes = (outcome(1.0, 2, math.inf), outcome(math.nan, 2, math.nan))
    with pytest.raises(NotFinite, match="the gradient norm is inf in epoch 1, step 4, on rank 0"):
        read(log(*outcomes), ALONE, epoch=1, step=5)


def test_under_float16_a_norm_that_is_not_finite_is_none_and_no_error() -> None:
    reading = log(outcome(1.0, 2, math.inf), tolerant=True).read(
        ALONE, epoch=1, step=1, largest_parameter=SOUND
    )
    assert reading.gradient_norm is None
    assert reading.loss_sums == (1.0,)


def test_nothing_is_read_from_the_device_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> None:
        raise AssertionError("waited for the device")

    made = WindowLog(tolerant=False)
    for name in ("item", "tolist", "__float__", "__bool__"):
        monkeypatch.setattr(torch.Tensor, name, forbidden)
    made.add(outcome(1.0, 2, 3.0))
    monkeypatch.undo()
    assert read(made, ALONE, epoch=1, step=1).gradient_norm == 3.0


@pytest.mark.parametrize("tolerant", [False, True])
def test_a_model_that_is_not_finite_is_refused_though_its_losses_are(tolerant: bool) -> None:
    ranks: Any = Rehearsed(1.0, 2, math.inf)
    with pytest.raises(NotFinite, match="a parameter is inf after epoch 1, step 6, on rank 1; low"):
        log(outcome(1.0), tolerant=tolerant).read(ranks, epoch=1, step=6, largest_parameter=SOUND)
    nan = torch.tensor(math.nan)
    with pytest.raises(NotFinite, match="a parameter is nan after epoch 1, step 6, on rank 0; low"):
        log(outcome(1.0), tolerant=tolerant).read(ALONE, epoch=1, step=6, largest_parameter=nan)
