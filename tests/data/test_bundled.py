from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest
from sklearn.datasets import load_digits

from dpbench.data import bundled
from dpbench.data.bundled import every_fifth, every_fifth_by_size
from dpbench.errors import DataError


def test_all_digits_come_as_normalised_images_of_mnists_size() -> None:
    images, targets = bundled.read_digits()
    assert images.shape == (1797, 1, 28, 28)
    assert images.dtype == np.float32
    assert targets.shape == (1797,)
    assert targets.dtype == np.int64
    assert images.mean(dtype=np.float64) == pytest.approx(0, abs=1e-6)
    assert images.std(dtype=np.float64) == pytest.approx(1, abs=1e-6)


def test_they_are_those_of_scikit_learn_and_come_without_it() -> None:
    images, targets = bundled.raw_digits()
    theirs = load_digits()
    assert np.array_equal(images, theirs.images)
    assert np.array_equal(targets, theirs.target)
    known = (
        "import sys; from dpbench.data.bundled import read_digits as r; r(); print(*sys.modules)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", known], capture_output=True, text=True, check=True
    )
    assert "sklearn" not in ended.stdout.split()


def test_their_source_and_licence_lie_beside_them() -> None:
    text = (bundled.FOLDER / "digits-licence.txt").read_text()
    assert "CC BY 4.0" in text
    assert "https://doi.org/10.24432/C50P49" in text
    named = re.findall(r"digits-\S+gz", text)
    assert {path.name for path in bundled.FOLDER.glob("digits-*.gz")} == {*named}


def test_the_splits_are_all_images_and_every_fifth_of_each_digit_is_held_out() -> None:
    images, targets = bundled.read_digits()
    held_out = every_fifth(targets)
    for split, chosen in (("train", ~held_out), ("test", held_out)):
        part_images, part_targets = bundled.read_digits(split)  # type: ignore[arg-type]
        assert np.array_equal(part_images, images[chosen])
        assert np.array_equal(part_targets, targets[chosen])
    counts = np.bincount(targets[held_out]).tolist()
    assert counts == [35, 36, 35, 36, 36, 36, 36, 35, 34, 36]


def test_of_numbers_the_fifth_the_tenth_and_so_on_in_their_order_of_size_are_held_out() -> None:
    numbers = np.array([9.0, 1, 8, 2, 7, 3, 6, 4, 5, 0, 10])
    assert numbers[every_fifth_by_size(numbers)].tolist() == [9, 4]


CLASSES = {
    "iris": (4, [50, 50, 50]),
    "wine": (13, [59, 71, 48]),
    "breast_cancer": (30, [212, 357]),
}
"""Features, and rows of each class, as published."""


@pytest.mark.parametrize("name", CLASSES)
def test_a_table_has_its_published_rows_and_classes(name: str) -> None:
    features, counts = CLASSES[name]
    rows, targets = bundled.read_table(name)
    assert (rows.shape, rows.dtype) == ((sum(counts), features), np.float32)
    assert targets.dtype == np.int64
    assert np.bincount(targets).tolist() == counts


@pytest.mark.parametrize("name", [*CLASSES, "diabetes"])
def test_features_are_standardised_by_what_is_trained_on_alone(name: str) -> None:
    train, _ = bundled.read_table(name, "train")
    test, _ = bundled.read_table(name, "test")
    np.testing.assert_allclose(train.mean(axis=0, dtype=np.float64), 0, atol=1e-5)
    np.testing.assert_allclose(train.std(axis=0, dtype=np.float64), 1, atol=1e-5)
    assert np.abs(test.mean(axis=0)).max() > 1e-3  # its own mean had no part in it
    every, _ = bundled.read_table(name)
    assert sorted(map(tuple, every)) == sorted(map(tuple, np.concatenate([train, test])))


def test_without_scikit_learn_the_error_tells_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(
        DataError, match=r"'iris' needs scikit-learn: .*'dpbench\[tables\]', or use"
    ):
        bundled.read_table("iris")
