"""Which samples of a set are held out to test with: a fifth of every class, or of every size."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

EVERY = 5


def every_fifth(targets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Of each sample, bool (n,): it is the fifth, tenth, … of its class, in their order.

    So every class is held out alike, whatever the order of the samples, and always the same ones.
    """
    held_out = np.zeros(len(targets), dtype=np.bool_)
    for target in np.unique(targets):
        held_out[np.flatnonzero(targets == target)[EVERY - 1 :: EVERY]] = True
    return held_out


def every_fifth_by_size(targets: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
    """Of each sample, bool (n,): it is the fifth, tenth, … when they are sorted by their number.

    So small and large numbers are held out alike, and always the same ones; of equal numbers the
    earlier sample comes first.
    """
    held_out = np.zeros(len(targets), dtype=np.bool_)
    held_out[np.argsort(targets, kind="stable")[EVERY - 1 :: EVERY]] = True
    return held_out
