"""Learning rates of other batches, by hand; and what no rule can be applied to."""

from __future__ import annotations

import math

import pytest

import dpbench
from dpbench.specs.workload import scale_lr


@pytest.mark.parametrize(("rule", "expected"), [("linear", 8e-5), ("sqrt", 4e-5), ("none", 2e-5)])
def test_four_times_the_batch_of_a_fine_tuning(rule: str, expected: float) -> None:
    assert dpbench.scale_lr(2e-5, 4, rule) == pytest.approx(expected)


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, True, "2e-5", None])
def test_only_finite_numbers_above_zero_are_scaled(value: float) -> None:
    with pytest.raises(ValueError, match=r"base is .*; expected a finite number above 0"):
        scale_lr(value, 2, "linear")
    with pytest.raises(ValueError, match=r"ratio is .*; expected a finite number above 0"):
        scale_lr(0.1, value, "none")
    with pytest.raises(ValueError, match="scaled learning rate is inf"):
        scale_lr(1e300, 1e300, "linear")


def test_an_unknown_rule_is_refused_with_those_that_exist() -> None:
    with pytest.raises(ValueError, match="'cubic'; expected one of none, linear, sqrt"):
        scale_lr(0.1, 2, "cubic")
