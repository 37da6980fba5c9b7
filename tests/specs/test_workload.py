"""Learning rates of other batches, by hand; and what no rule can be applied to."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpbench
from dpbench.specs.workload import LR_RULES, scale_lr

POSITIVE = st.floats(1e-6, 1e6)


@pytest.mark.parametrize(("rule", "expected"), [("linear", 8e-5), ("sqrt", 4e-5), ("none", 2e-5)])
def test_four_times_the_batch_of_a_fine_tuning(rule: str, expected: float) -> None:
    assert dpbench.scale_lr(2e-5, 4, rule) == pytest.approx(expected)


@given(base=POSITIVE, ratio=POSITIVE, rule=st.sampled_from(LR_RULES))
def test_the_same_batch_keeps_the_rate_and_going_back_restores_it(
    base: float, ratio: float, rule: str
) -> None:
    assert scale_lr(base, 1, rule) == base
    assert scale_lr(scale_lr(base, ratio, rule), 1 / ratio, rule) == pytest.approx(base)


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, True, "2e-5", None])
def test_only_finite_numbers_above_zero_are_scaled(value: float) -> None:
    with pytest.raises(ValueError, match=r"base is .*; expected a finite number above 0"):
        scale_lr(value, 2, "linear")
    with pytest.raises(ValueError, match=r"ratio is .*; expected a finite number above 0"):
        scale_lr(0.1, value, "none")


def test_a_rate_beyond_all_numbers_is_refused() -> None:
    with pytest.raises(ValueError, match="scaled learning rate is inf"):
        scale_lr(1e300, 1e300, "linear")


def test_an_unknown_rule_is_refused_with_those_that_exist() -> None:
    with pytest.raises(ValueError, match="'cubic'; expected one of none, linear, sqrt"):
        scale_lr(0.1, 2, "cubic")
