"""From what the ranks report to the status and the sentence of the row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from dpbench.launch.launcher import judge_trial
from dpbench.launch.ranks import run_ranks
from dpbench.measure import verification
from dpbench.measure.implementations import ParallelModel, wrap
from dpbench.measure.implementations.ddp import OurDistributedDataParallel
from dpbench.measure.rank_group import rank_group
from dpbench.measure.trial import RankReport
from dpbench.measure.verification import verify
from dpbench.records.trial import RankMeasurement, Status, Verification, Window
from dpbench.specs import TrialSpec
from tests.builders import trial_spec
from tests.launch.faulty import Healthy

RIGHT = Verification(passed=True, max_relative_error=1e-15, tolerance=1e-10, tensors_compared=4)
WRONG = Verification(
    passed=False,
    max_relative_error=0.5,
    tolerance=1e-10,
    tensors_compared=4,
    worst_parameter="conv1.weight",
)


def measurement(number: int, losses: Sequence[float], checksum: str) -> RankMeasurement:
    steps = (0.1,) * len(losses)
    return RankMeasurement(
        rank=number,
        pid=100 + number,
        device="cpu",
        timed=Window(
            start_seconds=0.0, seconds=1.0, step_seconds=steps, samples=12, losses=tuple(losses)
        ),
        setup_seconds=0.1,
        final_checksum=checksum,
    )


def report(
    number: int = 0,
    losses: Sequence[float] = (2.0, 1.5, 1.0),
    checksum: str = "same",
    proof: Verification = RIGHT,
) -> RankReport:
    measured = measurement(number, losses, checksum) if proof.passed else None
    return RankReport(item="images", items_per_sample=1, verification=proof, measurement=measured)


def test_ranks_that_agree_are_a_completed_trial_with_all_they_measured() -> None:
    outcome = judge_trial(trial_spec(), [report(0), report(1)])
    assert (outcome.status, outcome.reason) == (Status.COMPLETED, None)
    assert [rank.rank for rank in outcome.ranks] == [0, 1]
    assert (outcome.item, outcome.items_per_sample) == ("images", 1)
    assert outcome.verification == RIGHT


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("position", "named"), [(0, 1), (2, 3)])
def test_a_loss_that_is_not_finite_is_a_divergence_from_that_step_on(
    bad: float, position: int, named: int
) -> None:
    losses = [2.0, 1.5, 1.0]
    losses[position] = bad
    outcome = judge_trial(trial_spec(), [report(0), report(1, losses)])
    assert outcome.status is Status.DIVERGED
    assert outcome.reason == f"the loss is not finite at timed step {named}"
    assert len(outcome.ranks) == 2  # what was measured is kept


def test_the_earliest_bad_step_of_any_rank_is_named() -> None:
    late, early = (1.0, 1.0, math.nan), (1.0, math.inf, math.nan)
    outcome = judge_trial(trial_spec(), [report(0, late), report(1, early)])
    assert outcome.reason == "the loss is not finite at timed step 2"


@pytest.mark.parametrize("implementation", ["ddp", "torch-ddp"])
def test_replicas_that_ended_apart_had_wrong_gradients(implementation: str) -> None:
    trial = trial_spec(implementation=implementation)
    outcome = judge_trial(trial, [report(0, checksum="a"), report(1, checksum="b")])
    assert outcome.status is Status.WRONG_GRADIENTS
    assert outcome.reason == "replicas hold different parameters after the timed window"


def test_a_window_that_ended_early_because_it_was_precise_is_complete() -> None:
    trial = trial_spec(timed_steps=1000, precision=0.01)
    assert judge_trial(trial, [report(0), report(1)]).status is Status.COMPLETED


def test_the_operations_that_rank_0_counted_are_those_of_the_trial() -> None:
    counted = replace(report(0), flops_per_item=32.0)
    assert judge_trial(trial_spec(), [counted, report(1)]).flops_per_item == 32.0


def test_independent_copies_may_end_apart() -> None:
    trial = trial_spec(implementation="independent", backend="none")
    outcome = judge_trial(trial, [report(0, checksum="a"), report(1, checksum="b")])
    assert outcome.status is Status.COMPLETED


def test_wrong_gradients_are_worse_than_a_divergence() -> None:
    nan = (math.nan,) * 3
    apart = [report(0, nan, checksum="a"), report(1, nan, checksum="b")]
    assert judge_trial(trial_spec(), apart).status is Status.WRONG_GRADIENTS


@pytest.mark.parametrize("position", [0, 1, 2])
def test_the_worst_proof_of_all_ranks_is_that_of_the_trial(position: int) -> None:
    proofs = [RIGHT, RIGHT, RIGHT]
    proofs[position] = WRONG
    reports = [report(number, proof=proof) for number, proof in enumerate(proofs)]
    outcome = judge_trial(trial_spec(group_size=3), reports)
    assert outcome.verification == WRONG
    assert outcome.status is Status.WRONG_GRADIENTS
    assert (outcome.reason or "").startswith(
        "gradients differ from one process by 0.5 relative (tolerance 1e-10), worst in conv1.weight"
    )


def test_a_proof_that_passed_still_keeps_the_largest_error() -> None:
    larger = replace(RIGHT, max_relative_error=1e-12)
    outcome = judge_trial(trial_spec(), [report(0), report(1, proof=larger)])
    assert outcome.status is Status.COMPLETED
    assert outcome.verification == larger


class BiasIsOff(OurDistributedDataParallel):
    """The bias arrives three times too large."""

    def finish(self) -> None:
        gradient = dict(self.module.named_parameters())["module.bias"].grad
        assert gradient is not None
        gradient.mul_(3)


def wrong_on_rank_1(trial: TrialSpec, rank: int) -> RankReport:
    """A rank's work: only rank 1 hands its optimizer a wrong gradient."""

    def fake(module: torch.nn.Module, small: TrialSpec, number: int) -> ParallelModel:
        right: Any = wrap(module, small, number)
        return right if rank == 0 else BiasIsOff(right.module, right.loss_weight)

    verification.wrap = fake
    inputs = torch.arange(64.0).reshape(16, 4).cos()
    samples = verification.Dataset(inputs=inputs, targets=inputs[:, :2])
    with rank_group(trial.backend, trial.process_count) as ranks:
        proof = verify(trial, Healthy(), samples, rank, ranks)
    return RankReport(item="rows", items_per_sample=3, verification=proof, measurement=None)


def proofs_of_two_ranks(folder: Path) -> list[RankReport]:
    trial = trial_spec(workload=replace(trial_spec().workload, learning_rate=0.0))
    return run_ranks(partial(wrong_on_rank_1, trial), 2, folder, 30)


def test_one_wrong_rank_fails_the_proof_of_all(tmp_path: Path) -> None:
    reports = proofs_of_two_ranks(tmp_path)
    assert [report.verification.passed for report in reports] == [False, False]
    errors = [report.verification.max_relative_error for report in reports]
    assert errors == pytest.approx([0.0, 2.0], rel=1e-9, abs=1e-14)


def test_the_parameter_that_is_named_is_that_of_the_wrong_rank(tmp_path: Path) -> None:
    outcome = judge_trial(trial_spec(), proofs_of_two_ranks(tmp_path))
    assert "worst in bias" in (outcome.reason or "")
