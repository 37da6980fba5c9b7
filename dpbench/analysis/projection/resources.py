"""What a million items cost: money by the hour of a replica, energy by its power."""

from __future__ import annotations

from dataclasses import replace

from dpbench.analysis.estimate import Estimate
from dpbench.analysis.propagation import product

MILLION = 1e6
SECONDS_PER_HOUR = 3600.0
JOULES_PER_KILOWATT_HOUR = 3.6e6


def price_per_million(
    throughput: Estimate, group_size: int, *, price_per_replica_hour: float
) -> Estimate:
    """Replicas × their price ÷ throughput, in the currency of the price.

    Every replica is paid for while the others compute.
    """
    per_second = group_size * price_per_replica_hour / SECONDS_PER_HOUR
    return inverse(throughput).scaled(
        MILLION * per_second, unit=f"currency units/million {_items(throughput)}"
    )


def energy_per_million(throughput: Estimate, group_size: int, *, watts: Estimate) -> Estimate:
    """Replicas × the power of one ÷ throughput, in kilowatt-hours.

    A replica that waits is taken to draw what it draws on average.
    """
    unit = f"kWh/million {_items(throughput)}"
    joules = product(inverse(throughput), watts, unit="J")
    return joules.scaled(MILLION * group_size / JOULES_PER_KILOWATT_HOUR, unit=unit)


def mean_power(joules_per_item: Estimate, throughput: Estimate) -> Estimate:
    """Watts of one replica, from what it measured alone: energy per item × items per second.

    The interval is that of the energy, because both come from the same windows.
    """
    return joules_per_item.scaled(throughput.value, unit="W")


def inverse(rate: Estimate) -> Estimate:
    """1 ÷ a positive rate, with the ends of its interval exchanged."""
    low, high = rate.interval or (None, None)
    return replace(
        rate,
        value=1 / rate.value,
        low=None if high is None else 1 / high,
        high=None if low is None else 1 / low,
        unit=f"1/({rate.unit})",
    )


def _items(throughput: Estimate) -> str:
    return throughput.unit.removesuffix("/s")
