"""The tables that come with scikit-learn: rows of numbers, of which a class or a number follows.

Nothing is downloaded. Features, and numbers that are to be predicted, are standardised by mean and
standard deviation of the training split alone, also where a sweep trains on all rows: so a held-out
row has no part in how it is seen, and both see the same values.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dpbench.data import hold_out
from dpbench.errors import DataError

Targets = NDArray[np.int64] | NDArray[np.float32]
"""Classes, or numbers."""


def read(
    name: str, split: Literal["train", "test"] | None = None
) -> tuple[NDArray[np.float32], Targets]:
    """Rows, float32 (n, features), and their targets, (n,): int64 classes or float32 numbers.

    All, those that are trained on, or the fifth that is held out, in their order. Raises DataError
    where scikit-learn is missing.
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
    """Rather than classes."""
    return targets.dtype.kind == "f"


def _standardised(values: NDArray[Any], train: NDArray[np.bool_]) -> NDArray[np.float32]:
    """With mean 0 and standard deviation 1, in each column, over the rows that are trained on."""
    known = values[train]
    scaled: NDArray[np.float64] = (values - known.mean(axis=0)) / known.std(axis=0)
    return scaled.astype(np.float32)


def _raw(name: str) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """Features, and integers for classes or floats for numbers, as scikit-learn has them."""
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
