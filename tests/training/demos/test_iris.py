from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch

from dpbench.errors import DataError
from dpbench.training.demos import iris
from dpbench.training.demos.section import Checks, Table
from dpbench.training.demos.threads import one_thread


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def test_ten_flowers_of_each_species_are_held_out_and_scaled_by_the_others() -> None:
    train, test = iris.flowers()
    assert torch.bincount(train.targets).tolist() == [40] * 3
    assert torch.bincount(test.targets).tolist() == [10] * 3
    torch.testing.assert_close(train.inputs.mean(0), torch.zeros(4, dtype=torch.float64))
    assert test.inputs.mean(0).abs().max() > 1e-3


def test_one_and_two_replicas_learn_the_species_as_the_plain_loop_does() -> None:
    _, table, checks = iris.run(iterations=400)
    assert isinstance(table, Table)
    assert [row[0] for row in table.rows] == [
        "plain loop, batches of 1",
        "dp_train, 1 replica",
        "plain loop, batches of 2",
        "dp_train, 2 replicas",
    ]
    assert isinstance(checks, Checks)
    assert [check.claim for check in checks.checks if not check.holds] == []
    assert len(checks.checks) == 6


def test_a_model_that_has_learnt_nothing_fails() -> None:
    *_, checks = iris.run(iterations=1)
    assert isinstance(checks, Checks)
    assert [check.holds for check in checks.checks] == [False] * 4 + [True] * 2


def test_without_scikit_learn_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(DataError, match=r"come with scikit-learn: .* pip install scikit-learn"):
        iris.flowers()
