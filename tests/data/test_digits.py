from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest
from sklearn.datasets import load_digits

from dpbench.data import digits, hold_out


def test_all_digits_come_as_normalised_images_of_mnists_size() -> None:
    images, targets = digits.read()
    assert images.shape == (1797, 1, 28, 28)
    assert images.dtype == np.float32
    assert targets.shape == (1797,)
    assert targets.dtype == np.int64
    assert images.mean(dtype=np.float64) == pytest.approx(0, abs=1e-6)
    assert images.std(dtype=np.float64) == pytest.approx(1, abs=1e-6)


def test_paper_and_full_ink_become_the_documented_ends_of_the_range() -> None:
    images, _ = digits.read()
    assert images.min() == pytest.approx((0 - 0.305) / 0.325, abs=0.01)
    assert images.max() == pytest.approx((1 - 0.305) / 0.325, abs=0.01)


def test_every_digit_occurs_as_often_as_published() -> None:
    _, targets = digits.read()
    counts = np.bincount(targets).tolist()
    assert counts == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_reading_twice_gives_the_same_images() -> None:
    assert np.array_equal(digits.read()[0], digits.read()[0])


def test_resizing_keeps_flat_images_and_the_direction_of_gradients() -> None:
    flat = digits.resize(np.full((1, 8, 8), 0.25))
    assert flat.shape == (1, 1, 28, 28)
    assert np.allclose(flat, 0.25)
    ramp = digits.resize(np.tile(np.arange(8.0), (1, 8, 1)))[0, 0]
    assert np.all(np.diff(ramp, axis=1) > -1e-12)
    # Pixel 4 of 28 has its centre at (4.5 × 8/28 - 0.5) of 8.
    assert np.allclose(ramp[:, 4], 4.5 * 8 / 28 - 0.5)
    assert np.allclose(np.diff(ramp, axis=0), 0)


def test_they_are_those_of_scikit_learn_and_come_without_it() -> None:
    images, targets = digits.raw()
    theirs = load_digits()
    assert np.array_equal(images, theirs.images)
    assert np.array_equal(targets, theirs.target)
    known = "import sys; from dpbench.data.digits import read; read(); print(*sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", known], capture_output=True, text=True, check=True
    )
    assert "sklearn" not in ended.stdout.split()


def test_their_source_and_licence_lie_beside_them() -> None:
    text = (digits.FOLDER / "digits-licence.txt").read_text()
    assert "CC BY 4.0" in text
    assert "https://doi.org/10.24432/C50P49" in text
    named = re.findall(r"digits-\S+gz", text)
    assert {path.name for path in digits.FOLDER.glob("digits-*.gz")} == {*named}


def test_the_splits_are_all_images_and_every_fifth_of_each_digit_is_held_out() -> None:
    images, targets = digits.read()
    held_out = hold_out.every_fifth(targets)
    for split, chosen in (("train", ~held_out), ("test", held_out)):
        part_images, part_targets = digits.read_split(split)  # type: ignore[arg-type]
        assert np.array_equal(part_images, images[chosen])
        assert np.array_equal(part_targets, targets[chosen])
    # A fifth of the published counts above, rounded down.
    counts = np.bincount(targets[held_out]).tolist()
    assert counts == [35, 36, 35, 36, 36, 36, 36, 35, 34, 36]
