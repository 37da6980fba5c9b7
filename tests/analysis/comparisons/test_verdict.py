"""The verdict of a check: its operating points by simulation, and every outcome by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from dpbench.analysis.change import change_between
from dpbench.analysis.comparisons.comparison import ComparedRow
from dpbench.analysis.comparisons.verdict import ALPHA_OF_A_LOOK, Rule, judge_metric
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
(ROW,) = ALL_PASS.rows
"""A row to give other costs."""


def changed(before: Floats, after: Floats) -> list[ComparedRow]:
    """Rows of one sweep from the logarithms of their costs, (rows, repetitions)."""
    return [
        replace(ROW, change=change_between(*map(dict, map(enumerate, sides)), paired=True))
        for sides in zip(np.exp(before).tolist(), np.exp(after).tolist(), strict=True)
    ]


def frequencies(
    slowdowns: Mapping[str, tuple[float, ...]],
    *,
    looks: list[int] = THREE_LOOKS,
    checks: int = 400,
) -> tuple[float, float]:
    """How often checks regress and pass, with a spread of 3 % between runs.

    The slowdowns are those of each row of a metric, which vary independently.
    """
    rng = np.random.default_rng(len(slowdowns))
    outcomes = []
    for _ in range(checks):
        sides = {
            metric: rng.normal(scale=0.03, size=(2, len(of_rows), looks[-1]))
            + np.log1p([np.zeros(len(of_rows)), of_rows])[:, :, np.newaxis]
            for metric, of_rows in slowdowns.items()
        }
        for passes in looks:
            rows = {
                metric: changed(before[:, :passes], after[:, :passes])
                for metric, (before, after) in sides.items()
            }
            alpha, share = ALPHA_OF_A_LOOK, ALPHA_OF_A_LOOK / len(rows)
            rule = Rule(tolerance=TOLERANCE, pass_level=alpha, regress_level=share, untrusted=())
            by_metric = tuple(judge_metric(metric, rows[metric], rule) for metric in rows)
            found = replace(ALL_PASS, by_metric=by_metric).outcome
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
    speed, *_ = assessment(changes, tolerances=tolerances).by_metric
    assert speed.outcome == "inconclusive"
    assert assessment(changes, tolerances=SPEED).outcome == "regressed"


def test_a_planted_slow_down_regresses_and_names_its_row() -> None:
    verdict = assessment({16: slower(QUIET, 0.1), 32: QUIET})
    assert verdict.outcome == "regressed"
    assert [row.outcome for row in verdict.rows] == ["regressed", "pass"]
    for row in verdict.rows:  # the p-value is that of the test that decided
        assert row.tested
        assert row.p_value == row.tested.p_above(1.03)
    (whole,) = verdict.by_metric
    assert whole.change is not None
    assert whole.change.estimate.value == pytest.approx(math.sqrt(1.1))
    assert whole.change.repetitions == (5, 5)


def test_every_metric_has_its_own_tolerance() -> None:
    tolerances = {"images_per_second": 0.20, "step_seconds_p50": 0.03}
    found = assessment({16: slower(QUIET, 0.10)}, tolerances=tolerances)
    assert [one.outcome for one in found.by_metric] == ["pass", "regressed"]
    assert found.outcome == "regressed"


def test_what_has_no_partner_or_failed_is_named() -> None:
    extra = runs(trial(batch_size=64), QUIET)
    assert assessment({16: QUIET}, *extra).notes == (
        "only in after, not compared: ddp/gloo ×1, batch 64",
    )
    killed = record(trial(batch_size=64), status=Status.FAILED, reason="rank 1 was killed")
    base = side("before", runs(trial(), QUIET), [killed])
    found = judged(base, side("after", runs(trial(), QUIET)))
    assert found.failures == (("ddp/gloo ×1, batch 64 (baseline)", "failed: rank 1 was killed"),)
    found = judged(side("before", extra), side("after", [killed]))
    assert (found.outcome, found.needs_repetitions) == ("inconclusive", False)
    assert assessment({16: QUIET}, killed, *extra).failures == ()  # it was run again


@pytest.mark.parametrize(
    ("during", "outcome", "spoiled"),
    [(0.0, "regressed", False), (1.0, "regressed", True), (1.6, "inconclusive", True)],
)
def test_under_heavy_load_of_one_side_nothing_is_decided(
    during: float, outcome: str, spoiled: bool
) -> None:
    """However large the change is, as the load may have come with that side."""
    load = HostLoad(cores=2, during=during, stolen=0.0)
    slow = runs(trial(), slower(QUIET, 8.0), host_load=load)
    verdict = judged(side("before", runs(trial(), QUIET)), side("after", slow))
    outcomes = {verdict.outcome, *(one.outcome for one in (*verdict.by_metric, *verdict.rows))}
    assert outcomes == {outcome}
    found = verdict.load
    assert (found.spoils_speeds, bool(found.note)) == (spoiled, spoiled)
    assert found.spoils_differences == (outcome == "inconclusive")


@pytest.mark.parametrize(("times", "outcome"), [(1.001, "inconclusive"), (8.0, "regressed")])
def test_under_heavy_load_of_both_sides_nothing_passes(times: float, outcome: str) -> None:
    load = HostLoad(cores=2, during=1.6, stolen=0.0)
    before, after = (
        side(label, runs(trial(), slower(QUIET, factor), host_load=load), run_id="one sweep")
        for label, factor in (("before", 1.0), ("after", times))
    )
    verdict = judged(before, after)
    assert {verdict.outcome, *(one.outcome for one in verdict.by_metric)} == {outcome}
