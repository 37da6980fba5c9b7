"""The classical laws against numbers worked by hand, and against each other."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbench.analysis.estimate import Estimate
from dpbench.analysis.laws import amdahl, gustafson, karp_flatt, usl, usl_peak
from dpbench.analysis.laws.classical import karp_flatt_estimate, trend


def test_amdahl_at_a_serial_part_of_five_percent() -> None:
    assert [amdahl(0.05, n) for n in (8, 64, 1000)] == pytest.approx(
        [1 / (0.05 + 0.95 / n) for n in (8, 64, 1000)], abs=1e-12
    )
    assert [round(amdahl(0.05, n), 3) for n in (8, 64, 1000)] == [5.926, 15.422, 19.627]


def test_gustafson_at_a_serial_part_of_five_percent() -> None:
    assert [gustafson(0.05, n) for n in (8, 64)] == pytest.approx([7.65, 60.85], abs=1e-9)


def test_usl_and_its_peak() -> None:
    assert round(usl_peak(0.02, 0.0005), 2) == 44.27
    assert round(usl(0.02, 0.0005, 8), 3) == 6.849
    assert usl_peak(0.02, 0.0) == math.inf
    peak = usl(0.02, 0.0005, usl_peak(0.02, 0.0005))
    assert peak > max(usl(0.02, 0.0005, n) for n in (44, 45))


@given(st.floats(0, 1), st.integers(2, 10_000))
def test_karp_flatt_finds_the_serial_part_of_amdahls_law(serial: float, n: int) -> None:
    assert karp_flatt(amdahl(serial, n), n) == pytest.approx(serial, abs=1e-9)
    assert usl(serial, 0.0, n) == pytest.approx(amdahl(serial, n), rel=1e-9)


@given(st.floats(0.01, 1.5), st.integers(2, 10_000))
def test_karp_flatt_of_weak_scaling(efficiency: float, n: int) -> None:
    assert karp_flatt(efficiency * n, n) == pytest.approx(
        (1 / efficiency - 1) / (n - 1), rel=1e-9, abs=1e-9
    )


@pytest.mark.parametrize(
    ("speedups", "expected"),
    [
        ({2: 1.8, 4: 3.5, 8: 6.5}, [0.111, 0.048, 0.033]),
        ({2: 120 / 65, 4: 120 / 35, 8: 120 / 20}, [0.083, 0.056, 0.048]),
        # PyTorch's ResNet-50 on V100: 0.100 s alone, 0.103 s at 2, 0.104 s at 16.
        ({2: 2 * 0.100 / 0.103, 16: 16 * 0.100 / 0.104}, [0.030, 0.003]),
    ],
)
def test_published_speedups_have_a_falling_serial_fraction(
    speedups: dict[int, float], expected: list[float]
) -> None:
    fractions = [karp_flatt(speedup, n) for n, speedup in speedups.items()]
    assert [round(value, 3) for value in fractions] == expected
    assert trend([single(value) for value in fractions]) == "falling"


def test_the_interval_turns_round() -> None:
    speedup = Estimate(value=3.5, low=3.4, high=3.6, unit="×", sample_size=5, basis="repetitions")
    found = karp_flatt_estimate(speedup, 4)
    assert found.interval == (karp_flatt(3.6, 4), karp_flatt(3.4, 4))
    assert found.contains(karp_flatt(3.5, 4))


def test_there_is_no_fraction_at_the_baseline() -> None:
    with pytest.raises(ValueError, match="more replicas than the baseline"):
        karp_flatt(1.0, 1)


def test_what_intervals_cannot_tell_apart_is_constant() -> None:
    assert trend([between(0.01, 0.03), between(0.02, 0.05)]) == "constant"
    assert trend([between(0.01, 0.02), between(0.03, 0.05)]) == "growing"
    assert trend([single(0.100), single(0.102)]) == "constant"
    assert trend([single(0.1)]) is None


def single(value: float) -> Estimate:
    return Estimate(value=value, unit="", sample_size=1, basis="single value")


def between(low: float, high: float) -> Estimate:
    return Estimate(
        value=(low + high) / 2, low=low, high=high, unit="", sample_size=5, basis="repetitions"
    )
