from __future__ import annotations

from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch.utils.data import default_collate

from dpbench.architecture import load_architecture
from dpbench.data import datasets, digits, registry
from dpbench.data.datasets import Dataset, collate, load_user_dataset, synthetic_dataset
from dpbench.data.digits import every_fifth
from dpbench.errors import UsageError
from dpbench.messages import said_to
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
    with pytest.raises(UsageError, match=r"cannot write the prepared dataset into .*nowhere"):
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
    said = list[str]()
    with said_to(said.append):
        registry.note_unread(Path("data"), ["digits", "synthetic", "digits"])
        registry.note_unread(Path("data"), ["digits", "mnist"])
        registry.note_unread(None, ["digits"])
    assert said == [
        "--data-dir data has no effect with --data digits,synthetic; only mnist is read from there"
    ]


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


Pair = namedtuple("Pair", ("left", "right"))

DATASETS = """
import torch
from torch.utils.data import Dataset, IterableDataset

class Endless(IterableDataset):
    def __iter__(self): return iter(())

class Broken(Dataset):
    def __len__(self): raise OSError("no index file")
    def __getitem__(self, index): return 0, 0

def drawn(): return [(torch.rand(2), index) for index in range(5)]
def endless(): return Endless()
def nothing(): return None
def empty(): return []
def broken(): return Broken()
def raises(): raise FileNotFoundError("no folder of images")
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "theirs.py").write_text(DATASETS)
    monkeypatch.chdir(tmp_path)
    return "theirs.py"


def test_a_batch_is_that_of_default_collate_but_tuples_stay_tuples() -> None:
    items = [
        ({"ids": torch.tensor([n, n]), "pair": (n, [float(n)])}, Pair(torch.ones(1) * n, n))
        for n in range(3)
    ]
    inputs, targets = collate(items)
    plain, _ = default_collate(items)
    assert inputs["ids"].equal(plain["ids"])
    assert isinstance(inputs["pair"], tuple)
    assert inputs["pair"][0].tolist() == [0, 1, 2]
    assert isinstance(inputs["pair"][1], list)
    assert isinstance(targets, Pair)
    assert targets.right.tolist() == [0, 1, 2]


def test_every_process_gets_the_same_and_keeps_its_random_state(file: str) -> None:
    before = torch.get_rng_state()
    first, again, other = (
        load_user_dataset(f"{file}:drawn", seed=seed).items for seed in (3, 3, 4)
    )
    assert torch.get_rng_state().equal(before)
    assert first[0][0].equal(again[0][0])
    assert not first[0][0].equal(other[0][0])


def test_what_is_no_dataset_is_named_in_a_line(file: str) -> None:
    for function, words in (
        ("endless", "it returned an Endless; expected a map-style"),
        ("nothing", "it returned None; expected a map-style"),
        ("empty", "it has no items"),
        ("broken", r"its length raised OSError: no index file \(theirs.py, line 9\)"),
        ("raises", r"making it raised FileNotFoundError: no folder of images \(theirs.py, line"),
        ("drwan", r"theirs.py has no drwan"),
    ):
        with pytest.raises(UsageError, match=rf"^dataset 'theirs.py:{function}': .*{words}"):
            load_user_dataset(f"{file}:{function}", seed=0)
