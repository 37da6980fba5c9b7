from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor, nn

from dpbench.training import groups
from dpbench.training.demos import dp_train, equivalence, regression, speed
from dpbench.training.demos.section import Check, Checks
from dpbench.training.demos.threads import one_thread
from dpbench.training.result import TrainingResult

Gradients = Sequence[Sequence[Tensor | None]]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture
def no_speeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dp_train, "speeds", lambda devices: iter(()))


def checks() -> list[Check]:
    return [
        check
        for section in dp_train.run()
        if isinstance(section, Checks)
        for check in section.checks
    ]


def set_sum(model: nn.Module, gradients: Gradients) -> None:
    """Not divided by the number of replicas."""
    for parameter, column in zip(model.parameters(), zip(*gradients, strict=True), strict=True):
        parameter.grad = torch.stack([g for g in column if g is not None]).sum(0)


def set_first(model: nn.Module, gradients: Gradients) -> None:
    """Replica 0's alone, as without any communication."""
    for parameter, gradient in zip(model.parameters(), gradients[0], strict=True):
        parameter.grad = gradient


@pytest.mark.usefixtures("no_speeds")
def test_the_thirteen_checks_and_two_exact_ones_hold() -> None:
    found = checks()
    assert len(found) == 15
    assert [check.claim for check in found if not check.holds] == []
    assert sum("last third" in check.claim for check in found) == 4


@pytest.mark.usefixtures("no_speeds")
def test_a_wrong_average_and_a_changed_random_state_fail_their_checks_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    train = regression.train

    def untidy(devices: Sequence[str]) -> TrainingResult:
        torch.rand(1)
        return train(devices)

    monkeypatch.setattr(groups, "set_mean", set_sum)
    monkeypatch.setattr(regression, "train", untidy)
    failed = [check for check in checks() if not check.holds]
    assert failed[0].found == "changed: random state"
    assert [check.claim[:38] for check in failed[1:]] == [
        "2 replicas of 1 sample = 1 model with ",
        "4 replicas of 1 sample = 1 model with ",
    ]


def test_replicas_that_do_not_talk_are_told_from_one_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "set_mean", set_first)
    assert equivalence.difference_from_one_model(["cpu"] * 2) > 1e-3


def test_with_gpus_the_largest_count_is_all_of_them_and_else_four() -> None:
    assert dp_train.replica_counts(0) == (1, 2, 4)
    assert dp_train.replica_counts(1) == (1, 2, 4)
    assert dp_train.replica_counts(2) == (1, 2)
    assert dp_train.replica_counts(8) == (1, 2, 8)


def test_one_replica_is_the_plain_loop_to_the_bit() -> None:
    assert equivalence.difference_from_one_model(["cpu"]) == 0


def test_speeds_are_of_every_mode_and_number_of_replicas() -> None:
    found = list(speed.speeds([["cpu"] * 2], steps=3))
    assert [(one.mode, one.replicas) for one in found] == [("sequential", 2), ("processes", 2)]
    assert all(one.start_seconds > 0 for one in found)
    assert all(one.samples_per_second is None or one.samples_per_second > 0 for one in found)
