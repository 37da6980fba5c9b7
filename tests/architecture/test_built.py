"""Factories that return (model, batch, loss)."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dpbench import architecture
from dpbench.errors import UsageError
from dpbench.measure.try_out import try_architecture

PARTS = """
import torch
from torch import nn

def batch(n, generator=None):
    tokens = torch.randint(9, (n, 4), generator=generator)
    return {"tokens": tokens, "scale": torch.rand(n)}, torch.rand(n)

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embedding = nn.Embedding(9, width)
    def forward(self, tokens, scale):
        return self.embedding(tokens).mean((1, 2)) * scale

def make(*, width: int = 3):
    return Net(width), batch, nn.functional.mse_loss

shared = Net(2)

def same():
    return shared, batch, nn.functional.mse_loss

def careless(): return Net(2), lambda n, generator: (torch.rand(n), torch.rand(n)), max
"""


@pytest.fixture(autouse=True)
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "net.py").write_text(PARTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


def generator(seed: int = 4) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def parameters(made: architecture.Architecture, seed: int) -> torch.Tensor:
    torch.manual_seed(seed)
    return torch.nn.utils.parameters_to_vector(made.build_model().parameters())


def test_the_parts_become_an_architecture() -> None:
    made = architecture.load_architecture("net.py:make:width=6")
    assert (made.item, made.default_dataset) == ("samples", "synthetic")
    assert made.build_model().embedding.weight.shape == (9, 6)  # type: ignore[union-attr]
    inputs, targets = made.synthetic_batch(5, generator())
    assert (inputs["tokens"].shape, targets.shape) == ((5, 4), (5,))
    assert made.loss(targets, targets) == 0
    assert architecture.architecture_notes(made) == ()


def test_every_model_is_a_new_one_of_the_random_state_that_it_is_built_in() -> None:
    made, same = (
        architecture.load_architecture("net.py:make"),
        architecture.load_architecture("net.py:same"),
    )
    assert torch.equal(parameters(made, 1), parameters(made, 1))
    assert not torch.equal(parameters(made, 1), parameters(made, 2))
    same.build_model()
    with pytest.raises(UsageError, match="the same model again; expected a new one at every call"):
        same.build_model()


def test_batches_are_the_same_everywhere_even_of_who_forgets_the_generator() -> None:
    for name in ("net.py:make", "net.py:careless"):
        made = architecture.load_architecture(name)
        before = torch.get_rng_state()
        first, again, other = (made.synthetic_batch(3, generator(seed))[1] for seed in (4, 4, 5))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)
        assert torch.equal(torch.get_rng_state(), before)


MODELS = """
import sys
from torch import nn

def list_models(module): return ["small"] if module is sys.modules[__name__] else ["detector"]

class Small(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.layer = nn.Linear(3, num_classes)
    def forward(self, images):
        return self.layer(images.mean((2, 3)))

def get_model(name, weights, num_classes=1000):
    assert weights is None
    return Small(num_classes)
"""


@pytest.fixture(autouse=True)
def torchvision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision/__init__.py").write_text("")
    (tmp_path / "torchvision/models.py").write_text(MODELS)
    for name in [*sys.modules]:
        if name.partition(".")[0] == "torchvision":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("torchvision", "torchvision.models"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("options", "side", "classes"), [("", 224, 1000), (":num_classes=5,image=16", 16, 5)]
)
def test_a_classifier_has_the_size_that_its_options_say(
    options: str, side: int, classes: int
) -> None:
    made = try_architecture(f"torchvision:small{options}")
    images, targets = made.synthetic_batch(3, torch.Generator().manual_seed(0))
    logits = made.build_model()(images)
    assert (images.shape, logits.shape) == ((3, 3, side, side), (3, classes))
    assert (made.name, made.item) == ("torchvision:small", "images")
    assert isinstance(made, architecture.SupportsAccuracy)
    assert 0 <= made.count_correct(logits, targets) <= 3


def test_what_torchvision_does_not_have_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="torchvision has no classifier 'detector'"):
        try_architecture("torchvision:detector")


def test_if_it_is_not_installed_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"not installed; pip install 'dpbench\[torchvision\]'"):
        architecture.load_architecture("torchvision:small")
