from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from dpbench import architecture
from dpbench.architecture import load
from dpbench.data import datasets, registry
from dpbench.data.arrays import write_arrays
from dpbench.errors import DataError, UsageError


@pytest.fixture
def mlp() -> architecture.Architecture:
    return architecture.load("mlp")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inputs = np.arange(6, dtype=np.float32).reshape(3, 2)
    write_arrays(tmp_path, inputs, np.array([7, 8, 9]))
    return tmp_path


class TooFew:
    """An architecture that makes one sample less than asked for."""

    name = "too_few"

    def synthetic_batch(
        self, n: int, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(n - 1, 1), torch.zeros(n - 1)


def test_prepared_samples_are_loaded_as_tensors(
    folder: Path, mlp: architecture.Architecture
) -> None:
    dataset = datasets.load("digits", folder, mlp, seed=0, samples=1)
    assert len(dataset) == 3
    assert dataset.inputs.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert dataset.targets.tolist() == [7, 8, 9]
    assert (dataset.inputs.dtype, dataset.targets.dtype) == (torch.float32, torch.int64)


def test_synthetic_samples_are_as_many_as_asked_for_and_the_same_in_every_process(
    mlp: architecture.Architecture,
) -> None:
    first, second = (datasets.load("synthetic", None, mlp, seed=4, samples=5) for _ in range(2))
    other = datasets.load("synthetic", None, mlp, seed=5, samples=5)
    assert len(first) == 5
    assert torch.equal(first.inputs, second.inputs)
    assert torch.equal(first.targets, second.targets)
    assert not torch.equal(first.inputs, other.inputs)


def test_a_dataset_that_was_not_prepared_is_a_data_error(mlp: architecture.Architecture) -> None:
    with pytest.raises(DataError, match="dataset 'mnist': got no folder of prepared samples"):
        datasets.load("mnist", None, mlp, seed=0, samples=1)


def test_an_architecture_that_generates_too_few_samples_is_named() -> None:
    small: object = TooFew()
    with pytest.raises(DataError, match=r"'too_few': synthetic_batch\(5\) returned 4 samples"):
        datasets.load("synthetic", None, small, seed=0, samples=5)  # type: ignore[arg-type]


@pytest.fixture
def splits_folder(tmp_path: Path) -> Path:
    for split, count in (("train", 5), ("test", 2)):
        inputs = np.full((count, 2), count, dtype=np.float32)
        write_arrays(tmp_path / split, inputs, np.arange(count))
    return tmp_path


def test_both_prepared_splits_are_loaded(
    splits_folder: Path, mlp: architecture.Architecture
) -> None:
    splits = datasets.load_splits("digits", splits_folder, mlp, seed=0)
    assert (len(splits.train), len(splits.test)) == (5, 2)
    assert splits.train.inputs.unique().tolist() == [5]
    assert splits.test.targets.tolist() == [0, 1]


def test_training_samples_that_are_not_there_are_a_usage_error(
    splits_folder: Path, mlp: architecture.Architecture
) -> None:
    with pytest.raises(UsageError, match="got 6, but dataset 'digits' has 5; take as many or"):
        datasets.load_splits("digits", splits_folder, mlp, seed=0, train_samples=6)


def test_synthetic_splits_have_4096_and_1024_samples_unless_others_are_asked_for(
    mlp: architecture.Architecture,
) -> None:
    splits = datasets.load_splits("synthetic", None, mlp, seed=0)
    assert (len(splits.train), len(splits.test)) == (4096, 1024)
    few = datasets.load_splits("synthetic", None, mlp, seed=0, train_samples=3)
    assert (len(few.train), len(few.test)) == (3, 1)


def test_the_hash_of_samples_is_of_their_bytes_and_shapes() -> None:
    inputs, targets = torch.arange(12.0).view(4, 3), torch.arange(4)

    def sha256(inputs: torch.Tensor = inputs, targets: torch.Tensor = targets, cut: int = 3) -> str:
        both = datasets.Dataset(inputs=inputs, targets=targets)
        return datasets.Splits(train=both.part(0, cut), test=both.part(cut, 4)).sha256()

    changed = inputs.clone()
    changed[3, 2] += 1  # of a test sample
    others = [sha256(changed), sha256(inputs.view(4, 1, 3)), sha256(inputs.int()), sha256(cut=2)]
    assert len({sha256(), *others, sha256(targets=targets.flip(0))}) == 6
    assert sha256(inputs.t().contiguous().t()) == sha256()  # memory layout does not count


FITS = {
    "digits": "mnist_cnn",
    "mnist": "mlp",
    "iris": "tabular:features=4,classes=3",
    "wine": "tabular:features=13,classes=3",
    "breast_cancer": "tabular",
    "diabetes": "tabular:features=10,classes=1",
    "text": "gpt:context=16,layers=1",
    "synthetic": "dlrm",
}


@pytest.mark.parametrize("dataset", registry.DATASETS)
def test_every_dataset_fits_an_architecture_that_ships(dataset: str) -> None:
    registry.check_fits(dataset, load(FITS[dataset]), named=FITS[dataset])


@pytest.mark.parametrize(
    ("dataset", "named", "has", "takes"),
    [
        ("digits", "gpt", "1×28×28 float32 with one int64 of 10 classes", "64 int64 with 64 int64"),
        ("iris", "tabular", "4 float32 with one int64 of 3 classes", "30 float32 with one int64"),
        ("iris", "tabular:features=4", "of 3 classes", "4 float32 with one int64 of 2 classes"),
        ("text", "gpt:vocabulary=255", "of 256 classes", "64 int64 with 64 int64 of 255 classes"),
        ("text", "bert", "a sequence of int64", "64 int64 and 9 int64 with 9 int64"),
    ],
)
def test_one_that_does_not_fit_is_refused_with_both_shapes(
    dataset: str, named: str, has: str, takes: str
) -> None:
    with pytest.raises(UsageError) as caught:
        registry.check_fits(dataset, load(named), named=named)
    message = str(caught.value)
    assert message.startswith(f"--data {dataset} does not fit --arch {named}: a sample is ")
    own, _, other = message.partition(", the architecture takes ")
    assert has in own
    assert takes in other
    assert "--data synthetic" in other
