"""The wrapper's share of a step, from the figures that were measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dpbench.analysis.estimate import Estimate
from dpbench.analysis.projection.project import assumptions
from dpbench.analysis.projection.series import Series
from dpbench.analysis.projection.wrapper_cost import (
    StepCost,
    wrapper_assumptions,
    wrapper_cost,
    wrapper_share,
)
from tests.analysis.projection.models import series

STEP = Estimate(value=0.02, low=0.016, high=0.025, unit="s", sample_size=3, basis="repetitions")
COST = wrapper_cost().dynamic


def of_trial(**changes: Any) -> Series:
    one = series()
    return replace(one, trial=replace(one.trial, **changes))


def test_a_step_costs_the_sum_of_its_terms_at_either_end() -> None:
    cost = StepCost(step_seconds=(10.0, 20.0), tensor_seconds=(1.0, 3.0), bucket_seconds=(5.0, 6.0))
    assert cost.seconds(tensors=100, buckets=2) == (10 + 100 + 10, 20 + 300 + 12)


def test_figures_are_seconds_and_in_order() -> None:
    for cost in (wrapper_cost().dynamic, wrapper_cost().static):
        for low, high in (cost.step_seconds, cost.tensor_seconds, cost.bucket_seconds):
            assert 1e-6 < low < high < 1e-4


def test_tensors_and_buckets_are_those_of_the_trace() -> None:
    # Eight gradients of 1 MiB: the first one fills the first bucket, the second takes the others.
    found = wrapper_share(series(), 2, STEP)
    assert found is not None
    assert (found.tensors, found.buckets) == (8, 2)
    low, high = (
        COST.step_seconds[end] + 8 * COST.tensor_seconds[end] + 2 * COST.bucket_seconds[end]
        for end in (0, 1)
    )
    assert found.seconds.interval == pytest.approx((low, high))
    assert found.seconds.value == pytest.approx((low + high) / 2)
    assert found.share.value == pytest.approx((low + high) / 2 / 0.02)
    assert found.share.interval == pytest.approx((low / 0.025, high / 0.016))
    assert found.seconds.sample_size == wrapper_cost().runs


def test_the_share_of_a_step_without_interval_varies_with_the_cost_alone() -> None:
    found = wrapper_share(series(), 2, replace(STEP, low=None, high=None))
    assert found is not None
    assert found.seconds.interval is not None
    assert found.share.interval == pytest.approx(tuple(e / 0.02 for e in found.seconds.interval))


def test_one_bucket_costs_less_than_two() -> None:
    two, one = (wrapper_share(series(cap_mb=cap), 2, STEP) for cap in (4.0, 8.0))
    assert two is not None
    assert one is not None
    assert (two.buckets, one.buckets) == (2, 1)
    middle = sum(COST.bucket_seconds) / 2
    assert two.seconds.value - one.seconds.value == pytest.approx(middle)


def test_a_wrapper_of_others_has_no_share_and_no_assumption() -> None:
    others = of_trial(implementation="torch-ddp")
    assert wrapper_share(others, 2, STEP) is None
    assert wrapper_assumptions(others) == ()
    assert not any("wrapper" in line for line in assumptions(others, 8, "a machine"))
    assert any("wrapper's own Python" in line for line in assumptions(series(), 8, "a machine"))


@pytest.mark.parametrize("changes", [{"comm_hook": "bf16"}, {"accumulation_steps": 2}])
def test_where_the_figures_do_not_apply_the_share_is_left_out_with_a_reason(
    changes: dict[str, Any],
) -> None:
    one = of_trial(**changes)
    assert wrapper_share(one, 2, STEP) is None
    [reason] = wrapper_assumptions(one)
    assert "left out" in reason


def test_assumptions_name_the_machine_and_the_date_of_the_figures() -> None:
    first, ranks = wrapper_assumptions(series())
    assert wrapper_cost().machine in first
    assert wrapper_cost().date in first
    assert "from 2 to 512" in ranks
