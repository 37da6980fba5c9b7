from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits

from dpbench.data import bundled
from dpbench.data.bundled import every_fifth


def test_digits_are_those_of_scikit_learn_as_normalized_images_of_mnists_size() -> None:
    theirs = load_digits()
    levels = bundled.read_idx(bundled.DIGITS_FOLDER / "digits-images-idx3-ubyte.gz")
    images, targets = bundled.read_digits()
    assert np.array_equal(levels, theirs.images)
    assert np.array_equal(targets, theirs.target)
    assert (images.shape, images.dtype) == ((1797, 1, 28, 28), np.float32)
    assert (targets.shape, targets.dtype) == ((1797,), np.int64)
    assert images.mean(dtype=np.float64) == pytest.approx(0, abs=1e-6)
    assert images.std(dtype=np.float64) == pytest.approx(1, abs=1e-6)


def test_the_splits_are_all_images_and_every_fifth_of_each_digit_is_held_out() -> None:
    images, targets = bundled.read_digits()
    held_out = every_fifth(targets)
    for split, chosen in (("train", ~held_out), ("test", held_out)):
        part_images, part_targets = bundled.read_digits(split)  # type: ignore[arg-type]
        assert np.array_equal(part_images, images[chosen])
        assert np.array_equal(part_targets, targets[chosen])
    counts = np.bincount(targets[held_out]).tolist()
    assert counts == [35, 36, 35, 36, 36, 36, 36, 35, 34, 36]
