from __future__ import annotations

import sys

import numpy as np
import pytest

from dpbench.data import tables
from dpbench.errors import DataError

CLASSES = {
    "iris": (4, [50, 50, 50]),
    "wine": (13, [59, 71, 48]),
    "breast_cancer": (30, [212, 357]),
}
"""Features, and rows of each class, as published."""


@pytest.mark.parametrize("name", CLASSES)
def test_a_table_has_its_published_rows_and_classes(name: str) -> None:
    features, counts = CLASSES[name]
    rows, targets = tables.read(name)
    assert (rows.shape, rows.dtype) == ((sum(counts), features), np.float32)
    assert targets.dtype == np.int64
    assert np.bincount(targets).tolist() == counts


@pytest.mark.parametrize("name", CLASSES)
def test_a_fifth_of_every_class_is_held_out(name: str) -> None:
    _, counts = CLASSES[name]
    (train, train_targets), (test, test_targets) = (
        tables.read(name, "train"),
        tables.read(name, "test"),
    )
    assert np.bincount(test_targets).tolist() == [count // 5 for count in counts]
    assert len(train_targets) + len(test_targets) == len(train) + len(test) == sum(counts)


@pytest.mark.parametrize("name", [*CLASSES, "diabetes"])
def test_features_are_standardised_by_what_is_trained_on_alone(name: str) -> None:
    train, _ = tables.read(name, "train")
    test, _ = tables.read(name, "test")
    np.testing.assert_allclose(train.mean(axis=0, dtype=np.float64), 0, atol=1e-5)
    np.testing.assert_allclose(train.std(axis=0, dtype=np.float64), 1, atol=1e-5)
    assert np.abs(test.mean(axis=0)).max() > 1e-3  # its own mean had no part in it
    every, _ = tables.read(name)
    assert sorted(map(tuple, every)) == sorted(map(tuple, np.concatenate([train, test])))


def test_diabetes_is_a_table_of_standardised_numbers() -> None:
    rows, numbers = tables.read("diabetes")
    assert (rows.shape, numbers.shape, numbers.dtype) == ((442, 10), (442,), np.float32)
    _, train = tables.read("diabetes", "train")
    _, test = tables.read("diabetes", "test")
    assert train.mean(dtype=np.float64) == pytest.approx(0, abs=1e-6)
    assert train.std(dtype=np.float64) == pytest.approx(1, abs=1e-6)
    assert len(test) == 88
    assert test.min() < -1.4  # small and large ones are held out
    assert test.max() > 1.9


def test_without_scikit_learn_the_error_tells_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(
        DataError, match=r"'iris' needs scikit-learn: .*'dpbench\[tables\]', or use"
    ):
        tables.read("iris")
