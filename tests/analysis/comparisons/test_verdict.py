"""The verdict of a check: its operating points by simulation, and every outcome by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpbench.analysis.comparisons.comparison import compare
from dpbench.analysis.comparisons.differences import (
    ALPHA,
    holm,
    mean_difference,
    repetitions_to_settle,
    welch,
)
from dpbench.analysis.comparisons.matching import NotComparable
from dpbench.analysis.comparisons.verdict import (
    ALPHA_OF_A_LOOK,
    assess,
    decide,
    judge,
)
from dpbench.analysis.metrics import METRICS
from dpbench.records.trial import HostLoad, Status
from tests.analysis.builders import (
    QUIET,
    assessment,
    record,
    runs,
    side,
    slower,
    throughputs,
    trial,
)

SPEED = METRICS["images_per_second"]
CHECKS = 4000


def frequencies(
    slowdowns: tuple[float, ...],
    *,
    spread: float = 0.03,
    tolerance: float = 0.05,
    looks: tuple[int, ...] = (5, 8),
) -> tuple[float, float]:
    """How often checks regress and pass: rows slower by `slowdowns`, passes up to the last look."""
    rng = np.random.default_rng(len(slowdowns))
    before, after = rng.normal(scale=spread, size=(2, CHECKS, len(slowdowns), max(looks)))
    changes = after - before + np.log1p(slowdowns)[:, np.newaxis]
    limit = math.log1p(tolerance)
    regressed, passed = np.zeros((2, CHECKS), dtype=bool)
    for passes in looks:
        undecided = ~regressed & ~passed
        seen = changes[..., :passes]
        pooled = seen.mean(axis=1)
        above, below = decide(mean_difference(pooled), pooled, limit, ALPHA_OF_A_LOOK)
        guard = (holm(mean_difference(seen).p_above(limit)) < ALPHA_OF_A_LOOK / 2).any(axis=-1)
        regressed |= undecided & (above | guard)
        passed |= undecided & below & ~guard
    return float(regressed.mean()), float(passed.mean())


def test_an_unchanged_candidate_passes_in_nine_of_ten_checks() -> None:
    """Two rows, 8 passes, 3 % spread between runs, tolerance 5 %."""
    regressed, passed = frequencies((0.0, 0.0))
    assert regressed <= 0.01
    assert passed >= 0.90


def test_ten_percent_slower_is_caught_in_nine_of_ten_checks() -> None:
    regressed, passed = frequencies((0.10, 0.10))
    assert regressed >= 0.90
    assert passed == 0


def test_a_candidate_at_the_tolerance_regresses_as_rarely_as_the_level_says() -> None:
    regressed, _ = frequencies((0.05, 0.05), looks=(5, 8, 12, 18, 27))
    assert 0.02 <= regressed <= 0.08


def test_one_row_of_four_that_is_slower_is_caught() -> None:
    regressed, _ = frequencies((0.0, 0.20, 0.0, 0.0))
    assert regressed >= 0.85


def test_more_rows_decide_sooner() -> None:
    passed = [frequencies((0.0,) * rows, spread=0.05)[1] for rows in (1, 4)]
    assert passed[0] + 0.2 < passed[1]


def test_the_sign_test_decides_where_one_pass_is_wild() -> None:
    changes = np.log([1.04] * 9 + [3.0])
    limit = math.log1p(0.03)
    pooled = mean_difference(changes)
    assert pooled.p_above(limit) > 0.05
    assert decide(pooled, changes, limit)[0]


def test_without_pairs_a_decided_change_has_an_interval_without_the_tolerance() -> None:
    rng = np.random.default_rng(0)
    for change in np.linspace(-0.3, 0.3, 50):
        found = welch(rng.normal(0, 0.1, 4), rng.normal(change, 0.1, 4))
        low, high = found.bounds(0.95)
        assert [bool(one) for one in decide(found, None, 0.0)] == [low > 0, high < 0]


def test_a_planted_slow_down_regresses_and_names_its_row() -> None:
    matched = throughputs({16: QUIET, 32: QUIET}, {16: [x / 1.1 for x in QUIET], 32: QUIET})
    verdict = judge(compare(matched, SPEED, within=0.03), {"images_per_second": 0.03})
    assert verdict.outcome == "regressed"
    slow, same = verdict.rows
    assert (slow.outcome, same.outcome) == ("regressed", "pass")
    (whole,) = verdict.metrics
    assert whole.slowdown == pytest.approx(math.sqrt(1.1))
    assert whole.repetitions == (5, 5)


def test_one_repetition_is_inconclusive_however_slow() -> None:
    slow = throughputs({16: [100.0]}, {16: [10.0]})
    verdict = judge(compare(slow, SPEED, within=0.03), {"images_per_second": 0.03})
    assert verdict.outcome == "inconclusive"
    assert verdict.metrics[0].slowdown is None


def test_rows_of_one_sweep_with_few_repetitions_in_common_are_judged_by_those() -> None:
    """Five repetitions pair the first row, two leave the second unpaired."""
    sides = [
        side(
            "x",
            *(
                [*runs(trial(name), QUIET), *runs(trial(name, batch_size=64), QUIET[:2])]
                for name in ("torch-ddp", "ddp")
            ),
            source="x",
            where={"implementation": name},
        )
        for name in ("torch-ddp", "ddp")
    ]
    (whole,) = assess([(sides[0], sides[1])], {"images_per_second": 0.03}).verdict.metrics
    assert whole.repetitions == (2, 2)


def test_every_metric_has_its_own_tolerance() -> None:
    found = assessment(
        {16: slower(QUIET, 0.10)},
        tolerances={"images_per_second": 0.20, "step_seconds_p50": 0.03},
    )
    outcomes = {one.metric: one.outcome for one in found.verdict.metrics}
    assert outcomes == {"images_per_second": "pass", "step_seconds_p50": "regressed"}
    assert found.verdict.outcome == "regressed"


def test_what_cannot_be_judged_is_refused() -> None:
    with pytest.raises(NotComparable, match="efficiency was measured in no configuration"):
        assessment({16: QUIET}, tolerances={"efficiency": 0.03})


def test_a_repetition_takes_as_long_as_the_trials_of_all_candidates() -> None:
    names = ("torch-ddp", "ddp", "ddp-sharded")
    records = [record for name in names for record in runs(trial(name), QUIET)]
    base, *candidates = (
        side(name, records, source="x", where={"implementation": name}) for name in names
    )
    found = assess([(base, candidate) for candidate in candidates], {"images_per_second": 0.03})
    assert [one.seconds_per_repetition for one in found.verdict.metrics] == [3.0, 3.0]


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


@pytest.mark.parametrize("spread", [0.01, 0.03, 0.05])
def test_the_passes_that_are_said_to_settle_it_do_so_in_four_of_five_checks(spread: float) -> None:
    limit = math.log1p(0.03)
    needed = repetitions_to_settle(
        spread * math.sqrt(2 / 5), (5, 5), limit, alpha=ALPHA, paired=False
    )
    assert needed is not None
    before, after = np.random.default_rng(11).normal(scale=spread, size=(2, CHECKS, needed))
    assert (welch(before, after).p_below(limit) < ALPHA).mean() > 0.77
    assert repetitions_to_settle(1.0, (5, 5), limit, alpha=ALPHA, paired=True) is None


def test_a_side_that_other_load_disturbed_makes_the_verdict_untrustworthy() -> None:
    busy, quiet = (HostLoad(cores=2, during=during, stolen=0.0) for during in (1.0, 0.0))
    for load, expected in ((busy, True), (quiet, False)):
        before, after = side("before", runs(trial(), QUIET)), runs(trial(), QUIET, host_load=load)
        found = assess([(before, side("after", after))], {"images_per_second": 0.03})
        assert found.verdict.is_untrustworthy is expected
