"""The verdict of a check: its operating points by simulation, and every outcome by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from dpbench.analysis.change import change_between
from dpbench.analysis.comparisons.comparison import ComparedRow
from dpbench.analysis.comparisons.verdict import INTERIM_ALPHA, deciding, judge
from dpbench.analysis.estimate import Floats
from dpbench.records.trial import HostLoad, Status
from tests.analysis.builders import (
    ALL_PASS,
    QUIET,
    assessment,
    judged,
    record,
    runs,
    side,
    slower,
    trial,
)

SPEED = {"images_per_second": 0.03}
LOOKS = [5, 8, 12, 18, 27, 41, 62, 93]
THREE_LOOKS = LOOKS[:3]
TOLERANCE = 0.05


def changed(baseline: Floats, candidate: Floats) -> list[ComparedRow]:
    """Rows of one sweep from the logarithms of their costs, (rows, repetitions)."""
    changes = (
        change_between(*map(dict, map(enumerate, sides)), ran_in_turn=True)
        for sides in zip(np.exp(baseline).tolist(), np.exp(candidate).tolist(), strict=True)
    )
    return [replace(ALL_PASS.rows["images_per_second"][0], change=one) for one in changes]


def frequencies(
    slowdowns: Mapping[str, tuple[float, ...]],
    *,
    looks: list[int] = THREE_LOOKS,
    checks: int = 400,
    layout: float = 0.0,
) -> tuple[float, float]:
    """How often checks regress and pass, with a spread of 3 % between runs.

    The slowdowns are those of each row of a metric, which vary independently. The layout of each
    new process makes a version faster or slower by this standard deviation.
    """
    rng, layouts = np.random.default_rng(len(slowdowns)), np.random.default_rng(1)
    outcomes = []
    for _ in range(checks):
        sides = {
            metric: rng.normal(scale=0.03, size=(2, len(of_rows), looks[-1]))
            + np.log1p([np.zeros(len(of_rows)), of_rows])[:, :, np.newaxis]
            for metric, of_rows in slowdowns.items()
        }
        renewed_at = [0, math.ceil(looks[0] / 2), *looks]
        lengths = np.diff(renewed_at)
        for noise in sides.values():
            of_processes = layouts.normal(scale=layout, size=(2, 1, len(lengths)))
            noise += np.repeat(of_processes, lengths, axis=2)
        for passes in looks:
            rows = {
                metric: changed(before[:, :passes], after[:, :passes])
                for metric, (before, after) in sides.items()
            }
            tolerances = dict.fromkeys(sides, TOLERANCE)
            judged = judge(replace(ALL_PASS, rows=rows), tolerances, alpha=INTERIM_ALPHA)
            found = deciding(judged).outcome
            if found != "inconclusive":
                break
        outcomes.append(found)
    return outcomes.count("regressed") / checks, outcomes.count("pass") / checks


def one_metric(*slowdowns: float) -> dict[str, tuple[float, ...]]:
    return {"images_per_second": slowdowns}


def test_three_looks_at_two_rows_tell_no_change_from_ten_percent_in_nine_of_ten_checks() -> None:
    regressed, passed = frequencies(one_metric(0.0, 0.0))
    assert regressed <= 0.01
    assert passed >= 0.90
    regressed, passed = frequencies(one_metric(0.10, 0.10))
    assert regressed >= 0.90
    assert passed == 0


def test_a_candidate_at_the_tolerance_regresses_as_rarely_as_the_level_says() -> None:
    regressed, _ = frequencies(one_metric(TOLERANCE, TOLERANCE), looks=LOOKS)
    assert 0.02 <= regressed <= 0.08


def test_layouts_of_new_processes_hardly_ever_make_unchanged_code_regress() -> None:
    regressed, passed = frequencies(one_metric(0.0), looks=LOOKS, layout=0.02)
    assert regressed <= 0.01
    assert passed >= 0.95


@pytest.mark.parametrize("rows", [1, 2])
def test_several_metrics_err_no_more_often_than_one(rows: int) -> None:
    metrics = ("images_per_second", "peak_memory_bytes", "step_seconds_p50", "step_seconds_p95")
    several = dict.fromkeys(metrics, (TOLERANCE,) * rows)
    regressed, _ = frequencies(several, looks=LOOKS, checks=200)
    assert regressed <= 0.10


def test_each_of_several_metrics_is_judged_at_its_share_of_the_level() -> None:
    """t is 2.6 on 8 degrees of freedom, p = 0.016: enough for one metric, not for three."""
    tolerances = {**SPEED, "step_seconds_p50": 0.03, "peak_memory_bytes": 0.5}
    changes = {16: slower(QUIET, 0.0435)}
    assert assessment(changes, tolerances=tolerances).verdicts[0].outcome == "inconclusive"
    assert deciding(assessment(changes, tolerances=SPEED)).outcome == "regressed"


def test_a_planted_slow_down_regresses_and_names_its_row() -> None:
    found = assessment({16: slower(QUIET, 0.1), 32: QUIET})
    verdict = deciding(found)
    assert verdict.outcome == "regressed"
    rows = found.rows["images_per_second"]
    assert [row.outcome for row in rows] == ["regressed", "pass"]
    for row in rows:  # the p-value is that of the test that decided
        assert row.change
        assert row.p_value == row.change.p_above(1.03)
    assert verdict.change is not None
    assert verdict.change.estimate.value == pytest.approx(math.sqrt(1.1))
    assert verdict.change.repetitions == (5, 5)


def test_every_metric_has_its_own_tolerance() -> None:
    tolerances = {"images_per_second": 0.20, "step_seconds_p50": 0.03}
    found = assessment({16: slower(QUIET, 0.10)}, tolerances=tolerances)
    assert [one.outcome for one in found.verdicts] == ["pass", "regressed"]
    assert deciding(found) is found.verdicts[1]


def test_what_has_no_partner_or_failed_is_named() -> None:
    extra = runs(trial(batch_size=64), QUIET)
    found = assessment({16: QUIET}, *extra)
    assert found.notes == ("only in after, not compared: ddp/gloo ×1, batch 64",)
    killed = record(trial(batch_size=64), status=Status.FAILED, reason="rank 1 was killed")
    base = side("before", runs(trial(), QUIET), [killed])
    found = judged(base, side("after", runs(trial(), QUIET)))
    failed = {"ddp/gloo ×1, batch 64 (baseline)": "failed: rank 1 was killed"}
    assert found.failures == failed
    verdict = deciding(judged(side("before", extra), side("after", [killed])))
    assert (verdict.outcome, verdict.change) == ("inconclusive", None)


@pytest.mark.parametrize(
    ("loads", "in_turn", "share", "outcome"),
    [
        ((0.0, 0.0), False, 8.0, "regressed"),
        ((0.0, 1.0), False, 8.0, "regressed"),
        ((0.0, 1.6), False, 8.0, "inconclusive"),
        ((0.0, 1.6), True, 8.0, "inconclusive"),
        ((1.6, 1.6), True, 8.0, "regressed"),
        ((1.6, 1.6), True, 0.001, "inconclusive"),
    ],
)
def test_under_heavy_load_only_a_regression_of_sides_that_had_it_together_is_decided(
    loads: tuple[float, float], in_turn: bool, share: float, outcome: str
) -> None:
    """However large the change is, as the load may have come with one side."""
    before, after = (
        side(
            label,
            runs(trial(), speeds, host_load=HostLoad(cores=2, during=during, stolen=0.0)),
        )
        for label, speeds, during in zip("ab", (QUIET, slower(QUIET, share)), loads, strict=True)
    )
    found = judged(before, after, in_turn=in_turn)
    (row,) = found.rows["images_per_second"]
    assert {deciding(found).outcome, row.outcome} == {outcome}
