"""The tables that come with scikit-learn: rows of numbers, from which a class or a number is
predicted.

Nothing is downloaded. Features and target numbers are standardised with the mean and standard
deviation of the training split alone, even if a sweep trains on all rows: so test rows do not
influence their own scaling, and sweeps and trainings see the same values.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dpbench.data import hold_out
from dpbench.errors import DataError

Targets = NDArray[np.int64] | NDArray[np.float32]
"""Targets: classes, or numbers."""


def read(
    name: str, split: Literal["train", "test"] | None = None
) -> tuple[NDArray[np.float32], Targets]:
    """Rows, float32 (n, features), and their targets, (n,): int64 classes or float32 numbers.

    These are all rows, the training rows, or the test rows (a fifth), in their order. Raises
    DataError if scikit-learn is missing.
    """
    features, targets = _raw(name)
    held_out = _held_out(targets)
    rows = _standardised(features, ~held_out)
    answers = _standardised(targets, ~held_out) if _numbers(targets) else targets.astype(np.int64)
    if split is None:
        return rows, answers
    chosen = held_out == (split == "test")
    return rows[chosen], answers[chosen]


def _held_out(targets: NDArray[Any]) -> NDArray[np.bool_]:
    if _numbers(targets):
        return hold_out.every_fifth_by_size(targets)
    return hold_out.every_fifth(targets)


def _numbers(targets: NDArray[Any]) -> bool:
    """Whether the targets are numbers rather than classes."""
    return targets.dtype.kind == "f"


def _standardised(values: NDArray[Any], train: NDArray[np.bool_]) -> NDArray[np.float32]:
    """The values, standardised in each column with the mean and standard deviation of the training
    rows."""
    known = values[train]
    scaled: NDArray[np.float64] = (values - known.mean(axis=0)) / known.std(axis=0)
    return scaled.astype(np.float32)


def _raw(name: str) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """Features and targets (integers for classes, floats for numbers), as in scikit-learn."""
    try:
        from sklearn import datasets
    except ImportError as error:
        raise DataError(
            f"dataset {name!r} needs scikit-learn: {error}; pip install 'dpbench[tables]', or use "
            "--data digits or --data synthetic, which need nothing"
        ) from error
    if name == "diabetes":
        features, targets = datasets.load_diabetes(return_X_y=True, scaled=False)
        return features, targets
    load = {
        "iris": datasets.load_iris,
        "wine": datasets.load_wine,
        "breast_cancer": datasets.load_breast_cancer,
    }[name]
    features, targets = load(return_X_y=True)
    return features, targets
