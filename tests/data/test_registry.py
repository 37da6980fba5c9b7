from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpbench.data import registry
from dpbench.errors import DataError, UnknownName
from tests.data.mnist_folder import put_set


def test_what_cannot_be_used_here_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=r"dataset: got 'mnst'; did you mean 'mnist'\?"):
        registry.prepare_dataset("mnst", data_dir=None, cache=tmp_path)


def test_a_data_folder_that_no_dataset_reads_is_told() -> None:
    assert registry.unread_notes("data", ["digits", "synthetic", "digits"]) == (
        "--data-dir data has no effect with --data digits, synthetic; only mnist is read "
        "from there",
    )
    assert registry.unread_notes("data", ["digits", "mnist"]) == ()
    assert registry.unread_notes(None, ["digits"]) == ()


def targets(folder: Path) -> int:
    return len(np.load(folder / "targets.npy"))


def test_digits_are_prepared_whole_and_in_splits(tmp_path: Path) -> None:
    assert registry.prepare_dataset("digits", data_dir=None, cache=tmp_path) == 1797
    assert np.load(tmp_path / "digits" / "targets.npy").dtype == np.int64
    count = registry.prepare_dataset("digits", data_dir=None, cache=tmp_path, held_out=True)
    assert (count, targets(tmp_path / "digits" / "test")) == (1442, 355)


def test_the_splits_of_mnist_are_its_two_pairs_of_files(tmp_path: Path) -> None:
    put_set(tmp_path, "train", 12)
    cache = tmp_path / "cache"
    with pytest.raises(DataError, match=r"expected t10k-images.* and t10k-labels"):
        registry.prepare_dataset("mnist", data_dir=tmp_path, cache=cache, held_out=True)
    put_set(tmp_path, "test", 4)
    count = registry.prepare_dataset("mnist", data_dir=tmp_path, cache=cache, held_out=True)
    assert (count, targets(cache / "mnist" / "test")) == (12, 4)
