"""What is wrong with somebody's model is known before any rank is started."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from dpbench import architecture
from dpbench.errors import UsageError
from dpbench.measure.try_out import try_architecture, try_dataset

MODELS = """
import random, torch
from torch import nn

mse = nn.functional.mse_loss

def batch(n, generator=None):
    return torch.rand(n, 3), torch.rand(n, 2)

def good(): return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Dropout()), batch, mse
def wide(): return nn.Sequential(nn.Linear(3, 2), nn.Linear(5, 2)), batch, mse
def vector(): return nn.Linear(3, 2), batch, lambda o, t: (o - t).square().mean(0)
def uneven(): return nn.Linear(3, 2), lambda n, g: ((torch.ones(n, 3),), torch.ones(n - 1)), mse
def fewer(): return nn.Linear(3, 2), lambda n, g: (torch.ones(1, 3), torch.ones(1, 2)), mse
def sparse(): return nn.Linear(3, 2), lambda n, g: (torch.eye(n).to_sparse(), torch.ones(n)), mse
def short(): return nn.Linear(3, 2), lambda n: batch(n), mse
def raises(): return Raises(), batch, mse
def rows(): return nn.Linear(3, 2), lambda n, g: torch.rand(n, 3), mse
@torch.no_grad()
def quiet(outputs, targets): return mse(outputs, targets)
def decorated(): return nn.Linear(3, 2), batch, quiet

class Raises(nn.Linear):
    def __init__(self): super().__init__(3, 2)
    def forward(self, x):
        raise KeyError("no such layer")

class Whole:
    name, item, default_dataset = "whole", "rows", "synthetic"
    def build_model(self): raise AssertionError("only its ranks run it")
    def synthetic_batch(self, n, generator): ...
    def loss(self, outputs, targets): ...

def drawn(n, generator): return torch.rand(n, 3), torch.full((n, 2), random.random())
def globally(): return nn.Linear(3, 2), drawn, mse
def partly():
    model = nn.Linear(3, 2)
    model.spare = nn.Linear(1, 1)
    return model, batch, mse

class Pair(nn.Linear):
    def forward(self, x): return super().forward(x), None
def pair(): return Pair(3, 2), batch, mse
def loud(outputs, targets): return print("loss") or mse(outputs, targets)
def noisy(): return print("made") or (nn.Linear(3, 2), batch, loud)
"""


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(
    "name",
    ["models.py:good", "models.py:globally", "models.py:noisy", "models.py:Whole", "resnet"],
)
def test_what_is_right_is_loaded_and_leaves_no_trace(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = torch.get_rng_state(), random.getstate()
    assert try_architecture(name).default_dataset == "synthetic"
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert capsys.readouterr().out == ""  # which may have to be JSON


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "wide",
            r"a step on 2 samples raised RuntimeError: mat1 and mat2 .*, in Linear\(in_features=5, "
            r"out_features=2, bias=True\) \(models.py, line 11\)$",
        ),
        (
            "vector",
            r"the loss is a tensor of shape \(2,\); expected the mean .*\(models.py, line 12\)$",
        ),
        ("decorated", r"a scalar without a gradient; .*\(models.py, line 19\)$"),
        ("uneven", r"batch\(2\): got 2 inputs\[0\] .*\(models.py, line 13\)$"),
        ("fewer", r"returned 1 sample; expected as many as asked for \(models.py, line 14\)$"),
        (
            "rows",
            r"batch\(2\) returned a tensor of shape \(2, 3\); expected .*\(models.py, line 18\)$",
        ),
        ("sparse", r"batch\(2\): inputs: got a torch.sparse_coo tensor"),
        ("short", r"batch\(2\) raised TypeError: .* takes 1 positional .*\(models.py, line"),
        ("raises", r"2 samples raised KeyError: 'no such layer' \(models.py, line 26\)$"),
        (
            "pair",
            r"the loss of a tuple of \(Tensor, NoneType\) raised AttributeError: 'tuple' object "
            r"has no attribute 'size' \(models.py, line 43\)$",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        try_architecture(f"models.py:{name}")
    assert str(raised.value).startswith(f"architecture 'models.py:{name}': ")
    assert "\n" not in str(raised.value)


def test_unused_parameters_are_warned_of() -> None:
    assert architecture.architecture_notes(try_architecture("models.py:good")) == ()
    (unused,) = architecture.architecture_notes(try_architecture("models.py:partly"))
    assert unused.startswith("warning: models.py:partly: DistributedDataParallel fails on")
    assert "without a gradient in a step: spare.weight, spare.bias; use them" in unused
    assert unused.endswith("(models.py, line 36)")


ITEMS = """
import torch

class Items(list):
    def __getitem__(self, index):
        if index and self.late: raise OSError("cannot read the last image")
        return super().__getitem__(index)
    late = False

good = lambda: [(torch.rand(3), torch.rand(2)) for _ in range(9)]
single = lambda: good()[:1]
bare = lambda: [torch.rand(3)] * 9
uneven = lambda: [(torch.rand(n), 1.0) for n in (3, 4)]
text = lambda: [(torch.rand(3), "cat")] * 9
wide = lambda: [(torch.rand(5), torch.rand(2))] * 9

class Drawn(Items):
    def __getitem__(self, index): return torch.rand(3), torch.rand(2)

drawn = lambda: Drawn(range(9))

def late():
    items = Items(good())
    items.late = True
    return items
"""


@pytest.mark.parametrize("name", ["good", "single", "drawn"])
def test_items_that_an_architecture_takes_are_right(name: str, tmp_path: Path) -> None:
    (tmp_path / "items.py").write_text(ITEMS)
    before = torch.get_rng_state()
    try_dataset(f"items.py:{name}", try_architecture("models.py:good"), seed=0)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bare", r"item 0 is a tensor of shape \(3,\); expected \(input, target\)"),
        ("uneven", "collating the items 0 and 1 raised RuntimeError: stack expects each tensor"),
        ("text", "collating the items 0 and 8: targets.*got str"),
        ("wide", "with architecture 'models.py:good': a step on 2 samples raised RuntimeErr"),
        ("late", r"item 8 raised OSError: cannot read the last image \(items.py, line 6\)"),
    ],
)
def test_items_that_are_wrong_are_named_in_one_line(
    name: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "items.py").write_text(ITEMS)
    with pytest.raises(UsageError, match=message) as raised:
        try_dataset(f"items.py:{name}", try_architecture("models.py:good"), seed=0)
    assert str(raised.value).startswith(f"dataset 'items.py:{name}'")
    assert "\n" not in str(raised.value)
