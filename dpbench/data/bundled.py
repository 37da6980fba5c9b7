"""The samples that come with dpbench or scikit-learn; nothing is downloaded.

The 1,797 handwritten digits, which scikit-learn has too: 8×8 images of 17 gray levels, the test set
of the UCI "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak, 1998), in files beside
this one; `digits-licence.txt` has their license. A sweep trains on all of them; `dpbench train`
holds out a fifth.

The tables of scikit-learn: rows of numbers, from which a class is predicted. Features are
standardized with the mean and standard deviation of the training split alone, even if a sweep
trains on all rows: so test rows do not influence their own scaling, and sweeps and trainings see
the same values.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from dpbench.data.mnist import read_idx
from dpbench.data.registry import Split
from dpbench.errors import DataError

EVERY = 5
"""One sample in so many is held out."""
DIGITS_FOLDER = Path(__file__).parent
BRIGHTEST = 16
"""The gray level of full ink; 0 is paper."""
SIDE = 28
"""Side in pixels after resizing: that of MNIST, so that both fit the same architectures."""


Arrays = tuple[NDArray[np.float32], NDArray[np.int64]]


def read_digits(split: Split | None = None) -> Arrays:
    """Images, float32 (n, 1, 28, 28), and digits, int64 (n,).

    These are all 1,797, the 1,442 training or the 355 test samples, in their order. The images are
    scaled to [0, 1], resized bilinearly, and standardized with the mean (about 0.305) and the
    standard deviation (about 0.325) of all pixels.
    """
    levels = read_idx(DIGITS_FOLDER / "digits-images-idx3-ubyte.gz")  # (1797, 8, 8)
    labels = read_idx(DIGITS_FOLDER / "digits-labels-idx1-ubyte.gz")
    planes = torch.from_numpy(levels / BRIGHTEST).unsqueeze(1)
    pixels = F.interpolate(planes, size=(SIDE, SIDE), mode="bilinear", align_corners=False).numpy()
    return _part_of(split, (pixels - pixels.mean()) / pixels.std(), labels)


def read_table(name: str, split: Split | None = None) -> Arrays:
    """Rows, float32 (n, features), and their classes, int64 (n,).

    These are all rows, the training rows, or the test rows (a fifth), in their order. Raises
    DataError if scikit-learn is missing.
    """
    try:
        from sklearn import datasets
    except ImportError as error:
        raise DataError(
            f"dataset {name!r} needs scikit-learn: {error}; pip install 'dpbench[tables]', or use "
            "--data digits or --data synthetic, which need nothing"
        ) from error
    features, classes = getattr(datasets, f"load_{name}")(return_X_y=True)
    known = features[~every_fifth(classes)]
    return _part_of(split, (features - known.mean(axis=0)) / known.std(axis=0), classes)


def _part_of(split: Split | None, inputs: Any, targets: Any) -> Arrays:
    """All samples, or those of a split, in the dtypes of a dataset."""
    chosen = slice(None) if split is None else every_fifth(targets) == (split == "test")
    return inputs[chosen].astype(np.float32), targets[chosen].astype(np.int64)


def every_fifth(targets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """A mask, bool (n,), of every fifth sample of each class, in order.

    So every class has the same share of test samples, whatever the order, and they are always the
    same ones.
    """
    held_out = np.zeros(len(targets), dtype=np.bool_)
    for target in np.unique(targets):
        held_out[np.flatnonzero(targets == target)[EVERY - 1 :: EVERY]] = True
    return held_out
