"""A series with all that is said of it."""

from __future__ import annotations

import pytest

from dpbench.analysis.laws.series import LoneStep, Series, series_of
from dpbench.analysis.laws.study import Wanted, study, study_all
from dpbench.analysis.summary import summarize
from dpbench.errors import UsageError
from tests.analysis.builders import run, trial
from tests.analysis.laws.series import ring_and_log, series


def test_efficiencies_are_those_of_every_other_table() -> None:
    """From 5 repetitions on they are paired."""
    records = [
        run(trial("ddp", group_size=n, repetition=i), speed * (1 + 0.02 * i) * (1 + 0.003 * i * n))
        for n, speed in ((1, 100.0), (2, 180.0), (4, 330.0))
        for i in range(5)
    ]
    (one,) = series_of(records, {})
    found = study(one, Wanted())
    expected = [row.efficiency for row in summarize(records)]
    assert [row.efficiency for row in found.measured] == expected


def test_what_is_predicted_unasked() -> None:
    def sizes(**wanted: int) -> list[int]:
        found = study(series(ring_and_log), Wanted(**wanted))
        return [row.prediction.group_size for row in found.predicted]

    assert sizes() == [16, 32]
    assert sizes(train_up_to=2) == [4, 8]


def test_a_withheld_point_stands_beside_its_prediction() -> None:
    found = study(series(ring_and_log), Wanted(train_up_to=4, predict=(8, 16, 64)))
    eight, sixteen, refused = found.predicted
    assert eight.prediction.kind == "extrapolated"
    assert eight.withheld == pytest.approx(8 * 32 / ring_and_log(8))
    assert eight.last_efficiency == pytest.approx(8 * 32 / ring_and_log(4))
    assert eight.efficiency is not None
    assert eight.efficiency.value == pytest.approx(0.1 / ring_and_log(8))
    assert sixteen.withheld is None
    assert (refused.prediction.kind, refused.last_efficiency, refused.efficiency) == (
        "refused",
        None,
        None,
    )


def test_faster_than_linear_is_flagged_unless_noise_explains_it() -> None:
    def seconds(n: int) -> float:
        return {1: 0.1, 2: 0.098, 4: 0.098}[n]

    assert study(series(seconds, (1, 2, 4)), Wanted()).faster_than_linear == (2, 4)
    noisy = series(seconds, (1, 2, 4), relative_error=0.02)
    assert study(noisy, Wanted()).faster_than_linear == ()


def test_the_law_knows_where_it_is_wrong() -> None:
    times = {1: 0.1, 2: 0.1, 4: 0.1, 8: 0.2}
    size, miss = study(series(lambda n: times[n]), Wanted()).fit.largest_miss
    assert size in (4, 8)
    assert abs(miss) > 0.05


def test_what_cannot_be_studied_is_told() -> None:
    good, lonely = series(ring_and_log), series(ring_and_log, (1,), label="lonely")
    studies, reasons = study_all([good, lonely], Wanted())
    assert [one.series.label for one in studies] == ["made up"]
    assert reasons == ("lonely: a fit takes at least two group sizes, got 1",)
    other = series(ring_and_log, (1,), label="other")
    with pytest.raises(UsageError, match=r"lonely.*and 1 more series"):
        study_all([lonely, other], Wanted())


def test_one_replica_that_is_in_use_is_not_left_out() -> None:
    """The plain module has no group; a strong series divides the steps of one replica."""
    plain = series(ring_and_log, (1,), label="plain", implementation="single")
    assert study_all([series(ring_and_log), plain], Wanted())[1] == ()

    def alone(batch: int) -> Series:
        return series(lambda _: batch / 1000, (1,), label="one", scaling="strong", batch_size=batch)

    lone = tuple(
        LoneStep(batch_size=batch, step_seconds=alone(batch).points[0].step_seconds)
        for batch in (64, 128)
    )
    times = {1: 0.128, 2: 0.07}
    strong = series(lambda n: times[n], (1, 2), scaling="strong", batch_size=128, lone_steps=lone)
    studies, reasons = study_all([strong, alone(64), alone(96)], Wanted())
    assert len(studies) == 1
    assert len(reasons) == 1  # batch 96, which nothing divides
