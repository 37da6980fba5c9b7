"""Values that steps leave on the device are added up over ranks; NaN and infinity are found."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from dpbench.training.checkpoint import Progress
from dpbench.training.loop import NotFinite, read_outcomes
from dpbench.training.state import StepOutcome
from tests.training.jobs import ALONE


class Rehearsed:
    """Two ranks, of which one's values are given."""

    def __init__(self, *theirs: float) -> None:
        self.theirs = list(theirs)

    def gather(self, values: list[float]) -> list[list[float]]:
        assert len(values) == len(self.theirs)
        return [list(values), self.theirs]


def outcome(loss_sum: float, norm: float | None = None) -> StepOutcome:
    loss = torch.tensor(loss_sum, dtype=torch.float64)
    return StepOutcome(loss, None if norm is None else torch.tensor(norm))


def read(
    *outcomes: StepOutcome, ranks: Any = ALONE, largest: float = 2.0, may_skip: bool = False
) -> tuple[list[float], float | None]:
    parameter = torch.tensor(largest)
    return read_outcomes(outcomes, parameter, ranks, Progress(epoch=2, step=8), may_skip)


def test_losses_are_added_up_over_ranks_step_by_step() -> None:
    ranks = Rehearsed(10.0, 20.0, 1.5, 8.0)
    assert read(outcome(1.0, 0.5), outcome(2.0, 0.25), ranks=ranks) == ([11.0, 22.0], 0.25)
    assert read(outcome(1.0)) == ([1.0], None)


def test_under_float16_losses_and_norms_may_be_infinite_but_no_parameter() -> None:
    assert read(outcome(math.inf, math.inf), may_skip=True) == ([math.inf], None)
    with pytest.raises(NotFinite, match="a parameter is inf"):
        read(outcome(1.0), may_skip=True, largest=math.inf)
