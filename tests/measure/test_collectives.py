from __future__ import annotations

from typing import Any

import pytest
import torch

from dpbench.measure import collectives
from dpbench.measure.collectives import OUTLASTS, Race, _size_computation
from dpbench.measure.rank_group import RankGroup

ALONE = RankGroup(size=1, control=None)


class CountedRace(Race):
    """A product takes a second, and the collective as long as it is told to."""

    def __init__(self, collective_seconds: list[float]) -> None:
        self.products = 1
        self._seconds = collective_seconds
        self._runs = 0

    def run(self, **_: Any) -> tuple[float, float]:
        self._runs += 1
        return float(self.products), self._seconds[self._runs % len(self._seconds)]


def test_the_computation_grows_until_it_outlasts_the_collective() -> None:
    race = CountedRace([7.0])
    assert _size_computation(race, ALONE) == race.products == 10
    assert race.products >= OUTLASTS * 7.0


def test_one_disturbed_sample_does_not_make_it_longer() -> None:
    race = CountedRace([7.0, 7.0, 500.0])
    _size_computation(race, ALONE)
    assert race.products == 10


def test_a_collective_that_never_ends_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(CountedRace):
        def run(self, **_: Any) -> tuple[float, float]:
            return float(self.products), 1.0 + self.products

    monkeypatch.setattr(collectives, "LONGEST_COMPUTATION_SECONDS", 20.0)
    with pytest.raises(RuntimeError, match=r"had not ended after .* s of computing"):
        _size_computation(Endless([]), ALONE)


class Slow:
    """Stands for a collective whose work is done when it has been looked at so often."""

    def __init__(self, looks: int) -> None:
        self._looks = looks

    def start(self) -> Slow:
        return self

    def is_completed(self) -> bool:
        self._looks -= 1
        return self._looks < 0

    def wait(self) -> None:
        self._looks = 0


@pytest.mark.parametrize(("looks", "within"), [(5, True), (1000, False)])
def test_the_end_of_the_collective_is_seen_between_two_products(looks: int, within: bool) -> None:
    race = Race(Slow(looks), torch.device("cpu"), ALONE)  # type: ignore[arg-type]
    race.products = 100
    computed, ended = race.run()
    assert (ended < computed) == within
