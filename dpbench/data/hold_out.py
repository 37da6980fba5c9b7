"""Chooses the test samples of a set: a fifth of every class, or of every range of values."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

EVERY = 5


def every_fifth(targets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """A mask, bool (n,), of every fifth sample of each class, in order.

    So every class has the same share of test samples, whatever the order, and they are always the
    same ones.
    """
    held_out = np.zeros(len(targets), dtype=np.bool_)
    for target in np.unique(targets):
        held_out[np.flatnonzero(targets == target)[EVERY - 1 :: EVERY]] = True
    return held_out


def every_fifth_by_size(targets: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
    """A mask, bool (n,), of every fifth sample when sorted by target.

    So small and large numbers are equally represented among the test samples, which are always the
    same ones; samples with equal numbers keep their order.
    """
    held_out = np.zeros(len(targets), dtype=np.bool_)
    held_out[np.argsort(targets, kind="stable")[EVERY - 1 :: EVERY]] = True
    return held_out
