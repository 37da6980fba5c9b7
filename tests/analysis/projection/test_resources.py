"""Money and energy worked by hand."""

from __future__ import annotations

import pytest

from dpbench.analysis.estimate import Estimate
from dpbench.analysis.projection.economics import given
from dpbench.analysis.projection.resources import (
    energy_per_million,
    inverse,
    mean_power,
    price_per_million,
)

SPEED = Estimate(
    value=1000.0, low=800.0, high=1250.0, unit="images/s", sample_size=3, basis="model"
)


def test_a_million_images_at_1000_a_second_take_8_replicas_1000_seconds() -> None:
    price = price_per_million(SPEED, 8, price_per_replica_hour=2.5)
    assert price.value == pytest.approx(8 * 2.5 * 1000 / 3600)
    assert price.interval == pytest.approx((8 * 2.5 * 800 / 3600, 8 * 2.5 * 1250 / 3600))
    assert price.unit == "currency units/million images"


def test_energy_is_power_times_time() -> None:
    watts = given(700.0, "W")
    assert watts is not None
    energy = energy_per_million(SPEED, 8, watts=watts)
    assert energy.value == pytest.approx(8 * 700 * 1000 / 3.6e6)
    assert energy.interval == pytest.approx((8 * 700 * 800 / 3.6e6, 8 * 700 * 1250 / 3.6e6))
    assert energy.unit == "kWh/million images"


def test_mean_power_is_energy_per_item_times_items_per_second() -> None:
    joules = Estimate(
        value=0.3, low=0.2, high=0.4, unit="J/image", sample_size=3, basis="repetitions"
    )
    power = mean_power(joules, SPEED)
    assert (power.value, power.low, power.high, power.unit) == (300, 200, 400, "W")


def test_the_inverse_exchanges_the_ends() -> None:
    assert inverse(SPEED).interval == pytest.approx((1 / 1250, 1 / 800))
