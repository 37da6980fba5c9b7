"""From what the ranks report to the status and the sentence of the row."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from dpbench.launch.outcome import judge_trial
from dpbench.measure.trial import RankReport
from dpbench.records.trial import Status, Verification
from tests.analysis.builders import PASSED, WRONG, rank, window
from tests.builders import trial_spec


def report(
    number: int = 0,
    losses: Sequence[float] = (2.0, 1.5, 1.0),
    checksum: str = "same",
    proof: Verification = PASSED,
) -> RankReport:
    timed = window((0.1,) * len(losses), 12, losses)
    measured = rank(number, timed, final_checksum=checksum) if proof.passed else None
    return RankReport(item="images", items_per_sample=1, verification=proof, measurement=measured)


def test_ranks_that_agree_are_a_completed_trial_with_all_they_measured() -> None:
    outcome = judge_trial(trial_spec(), [report(0), report(1)])
    assert (outcome.status, outcome.reason) == (Status.COMPLETED, None)
    assert [rank.rank for rank in outcome.ranks] == [0, 1]
    assert (outcome.item, outcome.items_per_sample) == ("images", 1)
    assert outcome.verification == PASSED


@pytest.mark.parametrize(
    ("bad", "position", "named"), [(math.nan, 0, 1), (math.inf, 2, 3), (-math.inf, 2, 3)]
)
def test_a_loss_that_is_not_finite_is_a_divergence_from_that_step_on(
    bad: float, position: int, named: int
) -> None:
    losses = [2.0, 1.5, 1.0]
    losses[position] = bad
    outcome = judge_trial(trial_spec(), [report(0), report(1, losses)])
    assert outcome.status is Status.DIVERGED
    assert outcome.reason == f"the loss is not finite at timed step {named}"
    assert len(outcome.ranks) == 2  # what was measured is kept


@pytest.mark.parametrize(
    ("implementation", "backend", "status", "reason"),
    [
        (
            *("ddp", "gloo", Status.WRONG_GRADIENTS),
            "replicas hold different parameters after the timed window",
        ),
        ("independent", "none", Status.COMPLETED, None),
    ],
)
def test_replicas_that_ended_apart_had_wrong_gradients_unless_they_are_independent(
    implementation: str, backend: str, status: Status, reason: str | None
) -> None:
    trial = trial_spec(implementation=implementation, backend=backend)
    outcome = judge_trial(trial, [report(0, checksum="a"), report(1, checksum="b")])
    assert (outcome.status, outcome.reason) == (status, reason)


def test_the_worst_proof_of_all_ranks_is_that_of_the_trial() -> None:
    reports = [report(number, proof=proof) for number, proof in enumerate((PASSED, WRONG, PASSED))]
    outcome = judge_trial(trial_spec(group_size=3), reports)
    assert outcome.verification == WRONG
    assert outcome.status is Status.WRONG_GRADIENTS
    words = "gradients differ from one process by 0.25 relative (tolerance 1e-06), worst in conv1.w"
    assert (outcome.reason or "").startswith(words)
