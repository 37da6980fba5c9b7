from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from dpbench.architecture import load_architecture
from dpbench.data import datasets, registry
from dpbench.data.datasets import write_arrays
from dpbench.errors import UsageError

MLP = load_architecture("mlp")


def write(folder: Path, count: int) -> None:
    inputs = np.full((count, 2), count, dtype=np.float32)
    write_arrays(folder, inputs, np.arange(count))


def test_prepared_samples_are_loaded_as_tensors(tmp_path: Path) -> None:
    write(tmp_path / "digits", 3)
    dataset = datasets.load_dataset("digits", tmp_path, MLP, seed=0, samples=1)
    assert (dataset.inputs.tolist(), dataset.targets.tolist()) == ([[3, 3]] * 3, [0, 1, 2])
    assert (dataset.inputs.dtype, dataset.targets.dtype) == (torch.float32, torch.int64)
    for split, count in (("train", 5), ("test", 2)):
        write(tmp_path / "digits" / split, count)
    splits = datasets.load_splits("digits", tmp_path, MLP, seed=0)
    assert (len(splits.train), len(splits.test)) == (5, 2)


def test_synthetic_samples_are_as_many_as_asked_for_and_the_same_in_every_process() -> None:
    first, second = (
        datasets.load_dataset("synthetic", None, MLP, seed=4, samples=5) for _ in range(2)
    )
    other = datasets.load_dataset("synthetic", None, MLP, seed=5, samples=5)
    assert len(first) == 5
    assert torch.equal(first.inputs, second.inputs)
    assert torch.equal(first.targets, second.targets)
    assert not torch.equal(first.inputs, other.inputs)


def test_the_hash_of_samples_is_of_their_bytes_and_shapes() -> None:
    inputs, targets = torch.arange(12.0).view(4, 3), torch.arange(4)

    def sha256(inputs: torch.Tensor = inputs, targets: torch.Tensor = targets, cut: int = 3) -> str:
        both = datasets.Dataset(inputs=inputs, targets=targets)
        return datasets.Splits(train=both.part(0, cut), test=both.part(cut, 4)).sha256

    changed = inputs.clone()
    changed[3, 2] += 1  # of a test sample
    others = [sha256(changed), sha256(inputs.view(4, 1, 3)), sha256(inputs.int()), sha256(cut=2)]
    assert len({sha256(), *others, sha256(targets=targets.flip(0))}) == 6
    assert sha256(inputs.t().contiguous().t()) == sha256()  # memory layout does not count


def test_one_that_does_not_fit_is_refused_with_both_shapes() -> None:
    both = (
        "--data digits does not fit --arch gpt: a sample is 1×28×28 float32 with one int64, the "
        "architecture takes 64 int64 with 64 int64; take --data synthetic"
    )
    with pytest.raises(UsageError, match=both):
        registry.check_fits("digits", load_architecture("gpt"), named="gpt")
