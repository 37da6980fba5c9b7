from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from dpbench.data import registry
from dpbench.errors import DataError, UnknownName
from tests.data.mnist_folder import put_test_set, put_training_set


def test_what_cannot_be_used_here_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownName, match=r"unknown dataset 'mnst'. Did you mean 'mnist'\?"):
        registry.prepare("mnst", data_dir=None, cache=tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    reason = registry.unusable_reason("iris", None)
    assert reason == "needs scikit-learn: pip install 'dpbench[tables]'"
    assert registry.unusable_reason("digits", None) is None


def test_a_data_folder_that_no_dataset_reads_is_told() -> None:
    assert registry.unread_notes("data", ["digits", "iris", "digits"]) == (
        "--data-dir data has no effect with --data digits, iris; only mnist and text are read from "
        "there",
    )
    assert registry.unread_notes("data", ["digits", "text"]) == ()
    assert registry.unread_notes(None, ["digits"]) == ()


def samples_to_test(splits: registry.PreparedData) -> int:
    assert splits.folder is not None
    return len(np.load(splits.folder / "test" / "targets.npy"))


@pytest.mark.parametrize(
    ("name", "train", "test", "target_dtype"),
    [("iris", 120, 30, np.int64), ("diabetes", 354, 88, np.float32)],
)
def test_a_table_is_prepared_whole_and_in_splits(
    name: str, train: int, test: int, target_dtype: type, tmp_path: Path
) -> None:
    whole = registry.prepare(name, data_dir=None, cache=tmp_path)
    splits = registry.prepare_splits(name, data_dir=None, cache=tmp_path)
    assert whole.samples == train + test
    assert (splits.samples, samples_to_test(splits)) == (train, test)
    assert whole.folder is not None
    assert np.load(whole.folder / "targets.npy").dtype == target_dtype


def test_text_is_prepared_in_sequences_of_the_architectures_length(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("abcdefghij" * 10)
    text = {"data_dir": path, "cache": tmp_path / "cache", "architecture": "gpt:context=8,layers=1"}
    whole = registry.prepare("text", **text)  # type: ignore[arg-type]
    splits = registry.prepare_splits("text", **text)  # type: ignore[arg-type]
    assert (whole.samples, splits.samples, samples_to_test(splits)) == (12, 10, 2)
    assert whole.folder is not None
    assert np.load(whole.folder / "inputs.npy").shape == (12, 8)
    assert whole.notes == splits.notes
    assert "100 B, 12 sequences of 8 tokens" in whole.notes[0]


def test_the_splits_of_mnist_are_its_two_pairs_of_files(tmp_path: Path) -> None:
    put_training_set(tmp_path, 12)
    with pytest.raises(DataError, match=r"expected t10k-images.* and t10k-labels"):
        registry.prepare_splits("mnist", data_dir=tmp_path, cache=tmp_path / "cache")
    put_test_set(tmp_path, 4)
    splits = registry.prepare_splits("mnist", data_dir=tmp_path, cache=tmp_path / "cache")
    assert (splits.samples, samples_to_test(splits)) == (12, 4)
    assert len(splits.notes) == 2
