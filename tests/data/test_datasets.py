from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from dpbench.architecture import load_architecture
from dpbench.data import datasets, digits, registry
from dpbench.data.datasets import Dataset, synthetic_dataset
from dpbench.data.digits import every_fifth
from dpbench.errors import DataError, UsageError
from dpbench.specs import WorkloadSpec
from tests.data.mnist_folder import put_mnist

MLP = load_architecture("mlp")


def workload(dataset: str) -> WorkloadSpec:
    return WorkloadSpec(architecture="mlp", dataset=dataset)


def test_prepared_digits_are_loaded_in_splits(tmp_path: Path) -> None:
    assert registry.prepare_dataset("digits", data_dir=None, cache=tmp_path) == 1442
    loaded, expected = datasets.load_splits(workload("digits"), tmp_path, MLP), digits.read_digits()
    assert (len(loaded.train), len(loaded.test)) == (1442, 355)
    assert loaded.sha256 == expected.sha256
    with pytest.raises(DataError, match=r"cannot write the prepared dataset into .*nowhere"):
        expected.save(tmp_path / "nowhere" / "digits.pt")


def test_synthetic_samples_are_as_many_as_asked_for_and_the_same_in_every_process() -> None:
    first, second, other = (synthetic_dataset(MLP, seed=seed, samples=5) for seed in (4, 4, 5))
    assert len(first) == 5
    assert torch.equal(first.inputs, second.inputs)
    assert torch.equal(first.targets, second.targets)
    assert not torch.equal(first.inputs, other.inputs)


def test_the_hash_of_samples_is_of_their_bytes_and_shapes() -> None:
    inputs, targets = torch.arange(12.0).view(4, 3), torch.arange(4)

    def sha256(inputs: torch.Tensor = inputs, targets: torch.Tensor = targets, cut: int = 3) -> str:
        both = Dataset(inputs=inputs, targets=targets)
        return datasets.Splits(train=both.part(0, cut), test=both.part(cut, 4)).sha256

    changed = inputs.clone()
    changed[3, 2] += 1  # of a test sample
    others = [sha256(changed), sha256(inputs.view(4, 1, 3)), sha256(inputs.int()), sha256(cut=2)]
    assert len({sha256(), *others, sha256(targets=targets.flip(0))}) == 6
    assert sha256(inputs.t().contiguous().t()) == sha256()  # memory layout does not count


def test_one_that_does_not_fit_is_refused_with_both_shapes() -> None:
    both = (
        "--data digits does not fit --arch gpt: a sample is 1×28×28 float32 with one int64, the "
        "architecture takes 64 int64 with 64 int64; take another architecture, or --data synthetic"
    )
    with pytest.raises(UsageError, match=both):
        datasets.check_fits("digits", load_architecture("gpt"), named="gpt")


def test_a_data_folder_that_no_dataset_reads_is_told() -> None:
    assert registry.unread_notes("data", ["digits", "synthetic", "digits"]) == (
        "--data-dir data has no effect with --data digits,synthetic; only mnist is read from there",
    )
    assert registry.unread_notes("data", ["digits", "mnist"]) == ()
    assert registry.unread_notes(None, ["digits"]) == ()


def test_the_splits_of_mnist_are_its_two_pairs_of_files(tmp_path: Path) -> None:
    put_mnist(tmp_path, 12, 4)
    count = registry.prepare_dataset("mnist", data_dir=tmp_path, cache=tmp_path)
    splits = datasets.load_splits(workload("mnist"), tmp_path, MLP)
    assert (count, len(splits.train), len(splits.test)) == (12, 12, 4)


def test_digits_are_those_of_scikit_learn_and_every_fifth_of_each_is_held_out() -> None:
    theirs, splits = load_digits(), digits.read_digits()
    levels = digits.read_idx(digits.DIGITS_FOLDER / "digits-images-idx3-ubyte.gz")
    assert np.array_equal(levels, theirs.images)
    held_out = every_fifth(theirs.target)
    assert np.array_equal(splits.train.targets, theirs.target[~held_out])
    assert np.array_equal(splits.test.targets, theirs.target[held_out])
    assert splits.test.targets.bincount().tolist() == [35, 36, 35, 36, 36, 36, 36, 35, 34, 36]
    whole = torch.cat([splits.train.inputs, splits.test.inputs])
    assert (whole.shape, whole.dtype) == ((1797, 1, 28, 28), torch.float32)
    assert splits.train.targets.dtype == torch.int64
    assert whole.double().mean() == pytest.approx(0, abs=1e-6)
    assert whole.double().std(correction=0) == pytest.approx(1, abs=1e-6)
