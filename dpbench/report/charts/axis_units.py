"""One unit per axis, chosen from the data: ms rather than s where steps are short.

Only what is written at the axis changes: what is drawn stays in the unit of the table.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter

from dpbench.report.charts.style import plain_number

THOUSANDS, MILLIONS = 20e3, 2e6
"""From so many on: 15,000 images/s are read more easily than 15 k images/s."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AxisUnit:
    """What an axis counts in."""

    name: str
    size: float
    """In units of the data."""

    def written(self, value: float, _: object = None) -> str:
        return plain_number(round(value / self.size, 12))


def axis_unit(values: Iterable[float], unit: str) -> AxisUnit:
    """The largest unit that the largest value has at least one of; of rates, many of."""
    largest = max((abs(value) for value in values), default=0.0)
    units = _units(unit)
    return next((one for one, fewest in units if largest >= fewest), units[-1][0])


def scaled_axis(axis: Axis, values: Iterable[float], unit: str, quantity: str) -> None:
    """Labels the axis "throughput (k images/s)" and writes its ticks in that unit.

    Without a quantity it has no label, as a panel whose neighbour has the same one.
    """
    chosen = axis_unit(values, unit)
    axis.set_major_formatter(FuncFormatter(chosen.written))
    axis.set_label_text(f"{quantity} ({chosen.name})" if quantity else "")


def _units(unit: str) -> list[tuple[AxisUnit, float]]:
    """What people write for a unit, the largest first, each with the least value that takes it."""
    if unit == "s":
        names = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}
        return [(AxisUnit(name=name, size=size), size) for name, size in names.items()]
    if unit == "B/s":
        names = {"GB/s": 1e9, "MB/s": 1e6, "kB/s": 1e3, "B/s": 1.0}
        return [(AxisUnit(name=name, size=size), size) for name, size in names.items()]
    if unit == "of linear":
        return [(AxisUnit(name="% of linear scaling", size=0.01), 0.0)]
    plain = (AxisUnit(name=unit, size=1.0), 0.0)
    if not unit.endswith("/s"):
        return [plain]
    return [
        (AxisUnit(name=f"M {unit}", size=1e6), MILLIONS),
        (AxisUnit(name=f"k {unit}", size=1e3), THOUSANDS),
        plain,
    ]
