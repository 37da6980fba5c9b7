"""The verdict of a check: its operating points by simulation, and every outcome by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from dpbench.analysis.comparisons.change import change_between
from dpbench.analysis.comparisons.comparison import Comparison, compare_metric
from dpbench.analysis.comparisons.verdict import ALPHA_OF_A_LOOK, assess, judge
from dpbench.analysis.estimate import Floats
from dpbench.analysis.metrics import METRICS
from dpbench.errors import NotComparable
from dpbench.records.trial import HostLoad, Status
from dpbench.run.gate.looks import sizes
from tests.analysis.builders import (
    QUIET,
    assessment,
    rank,
    record,
    runs,
    side,
    slower,
    throughputs,
    trial,
    window,
)

SPEED = METRICS["images_per_second"]
LOOKS = sizes(5)
TWO_LOOKS = LOOKS[:2]
TOLERANCE = 0.05
(ROW,) = compare_metric(throughputs({16: QUIET}, {16: QUIET}), SPEED, within=0.03)
"""A row as `compare` returns it, to give other costs."""


def rows_of(before: Floats, after: Floats, candidate: str, metric: str) -> list[Comparison]:
    """Rows of one sweep from the logarithms of their costs, (rows, repetitions)."""
    found = []
    for sides in zip(np.exp(before).tolist(), np.exp(after).tolist(), strict=True):
        first, second = (dict(enumerate(costs)) for costs in sides)
        found.append(
            replace(
                ROW,
                candidate_label=candidate,
                metric=metric,
                change=change_between(first, second, paired=True),
            )
        )
    return found


def frequencies(
    groups: Mapping[tuple[str, str], tuple[float, ...]],
    *,
    spread: float = 0.03,
    looks: list[int] = TWO_LOOKS,
    checks: int = 400,
) -> tuple[float, float]:
    """How often checks regress and pass.

    `groups` has the slowdown of each row of a (candidate, metric), which vary independently.
    """
    rng = np.random.default_rng(len(groups))
    tolerances = dict.fromkeys((metric for _, metric in groups), TOLERANCE)
    outcomes = []
    for _ in range(checks):
        sides = {
            key: rng.normal(scale=spread, size=(2, len(slowdowns), looks[-1]))
            + np.log1p([np.zeros(len(slowdowns)), slowdowns])[:, :, np.newaxis]
            for key, slowdowns in groups.items()
        }
        for passes in looks:
            rows = [
                row
                for key, (before, after) in sides.items()
                for row in rows_of(before[:, :passes], after[:, :passes], *key)
            ]
            verdict = judge(rows, tolerances, alpha=ALPHA_OF_A_LOOK)
            if verdict.outcome != "inconclusive":
                break
        outcomes.append(verdict.outcome)
    return outcomes.count("regressed") / checks, outcomes.count("pass") / checks


def one_metric(*slowdowns: float) -> dict[tuple[str, str], tuple[float, ...]]:
    return {("ddp", SPEED.key): slowdowns}


def test_an_unchanged_candidate_passes_in_nine_of_ten_checks() -> None:
    """Two rows, 8 passes, 3 % spread between runs, tolerance 5 %."""
    regressed, passed = frequencies(one_metric(0.0, 0.0))
    assert regressed <= 0.01
    assert passed >= 0.90


def test_ten_percent_slower_is_caught_in_nine_of_ten_checks() -> None:
    regressed, passed = frequencies(one_metric(0.10, 0.10))
    assert regressed >= 0.90
    assert passed == 0


def test_a_candidate_at_the_tolerance_regresses_as_rarely_as_the_level_says() -> None:
    regressed, _ = frequencies(one_metric(TOLERANCE, TOLERANCE), looks=LOOKS)
    assert 0.02 <= regressed <= 0.08


@pytest.mark.parametrize("rows", [1, 2])
def test_several_metrics_and_candidates_err_no_more_often_than_one(rows: int) -> None:
    metrics = ("images_per_second", "peak_memory_bytes", "step_seconds_p95")
    several = {
        (candidate, metric): (TOLERANCE,) * rows
        for candidate in ("ddp", "dp")
        for metric in metrics
    }
    regressed, _ = frequencies(several, looks=LOOKS, checks=200)
    assert regressed <= 0.10


def test_each_of_several_metrics_is_judged_at_its_share_of_the_level() -> None:
    """t is 2.6 on 8 degrees of freedom, p = 0.016: enough for one metric, not for three."""
    tolerances = {"images_per_second": 0.03, "step_seconds_p50": 0.03, "peak_memory_bytes": 0.5}
    changes = {16: slower(QUIET, 0.0435)}
    speed, *_ = assessment(changes, tolerances=tolerances).metrics
    assert speed.outcome == "inconclusive"
    alone = assessment(changes, tolerances={"images_per_second": 0.03})
    assert alone.outcome == "regressed"


def test_a_planted_slow_down_regresses_and_names_its_row() -> None:
    matched = throughputs({16: QUIET, 32: QUIET}, {16: [x / 1.1 for x in QUIET], 32: QUIET})
    verdict = judge(compare_metric(matched, SPEED, within=0.03), {"images_per_second": 0.03})
    assert verdict.outcome == "regressed"
    slow, same = verdict.rows
    assert (slow.outcome, same.outcome) == ("regressed", "pass")
    (whole,) = verdict.metrics
    assert whole.slowdown is not None
    assert whole.slowdown.value == pytest.approx(math.sqrt(1.1))
    assert whole.repetitions == (5, 5)


def test_one_repetition_is_inconclusive_however_slow() -> None:
    slow = throughputs({16: [100.0]}, {16: [10.0]})
    verdict = judge(compare_metric(slow, SPEED, within=0.03), {"images_per_second": 0.03})
    assert verdict.outcome == "inconclusive"
    assert verdict.metrics[0].slowdown is None


def test_every_metric_has_its_own_tolerance() -> None:
    found = assessment(
        {16: slower(QUIET, 0.10)},
        tolerances={"images_per_second": 0.20, "step_seconds_p50": 0.03},
    )
    outcomes = {one.metric: one.outcome for one in found.metrics}
    assert outcomes == {"images_per_second": "pass", "step_seconds_p50": "regressed"}
    assert found.outcome == "regressed"


def test_what_cannot_be_judged_is_refused() -> None:
    plain = [record(trial(repetition=n), [rank(0, window([0.1], 32))]) for n in range(2)]
    with pytest.raises(NotComparable, match="peak_memory_bytes was measured in no configuration"):
        assess([(side("before", plain), side("after", plain))], {"peak_memory_bytes": 0.03})


def test_a_repetition_takes_as_long_as_the_trials_of_all_candidates() -> None:
    names = ("torch-ddp", "ddp", "ddp-sharded")
    records = [record for name in names for record in runs(trial(name), QUIET)]
    base, *candidates = (
        side(name, records, source="x", where={"implementation": name}) for name in names
    )
    found = assess([(base, candidate) for candidate in candidates], {"images_per_second": 0.03})
    assert found.seconds_per_repetition == 3.0


def test_what_has_no_partner_or_failed_is_named() -> None:
    extra = runs(trial(batch_size=64), QUIET)
    assert assessment({16: QUIET}, *extra).notes == (
        "only in after, not judged: ddp/gloo ×1, batch 64",
    )
    killed = record(trial(batch_size=64), status=Status.FAILED, reason="rank 1 was killed")
    base = side("before", runs(trial(), QUIET), [killed])
    found = assess([(base, side("after", runs(trial(), QUIET)))], {"images_per_second": 0.03})
    assert found.failures == (
        ("ddp/gloo ×1, batch 64 (baseline)", "failed: rank 1 was killed", 1.0),
    )
    assert assessment({16: QUIET}, killed, *extra).failures == ()  # it was run again


def test_a_side_that_other_load_disturbed_makes_the_verdict_untrustworthy() -> None:
    busy, quiet = (HostLoad(cores=2, during=during, stolen=0.0) for during in (1.0, 0.0))
    for load, expected in ((busy, True), (quiet, False)):
        before, after = side("before", runs(trial(), QUIET)), runs(trial(), QUIET, host_load=load)
        found = assess([(before, side("after", after))], {"images_per_second": 0.03})
        assert found.is_untrustworthy is expected


@pytest.mark.parametrize(("during", "outcome"), [(1.0, "regressed"), (1.6, "inconclusive")])
def test_under_heavy_load_nothing_is_decided(during: float, outcome: str) -> None:
    """However large the change is, as the load may have come with one side."""
    load = HostLoad(cores=2, during=during, stolen=0.0)
    slow = runs(trial(), [one / 9 for one in QUIET], host_load=load)
    sides = [(side("before", runs(trial(), QUIET)), side("after", slow))]
    verdict = assess(sides, {"images_per_second": 0.03})
    assert {verdict.outcome, *(one.outcome for one in (*verdict.metrics, *verdict.rows))} == {
        outcome
    }
    assert verdict.needs_repetitions is (outcome == "inconclusive")
