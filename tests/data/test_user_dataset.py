"""Items of somebody's dataset become batches as torch's DataLoader makes them."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path

import pytest
import torch
from torch.utils.data import default_collate

from dpbench.data.user_dataset import collate, load_user_dataset
from dpbench.errors import UsageError

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
