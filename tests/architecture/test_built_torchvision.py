"""Classifiers of torchvision; a small package of that name stands for it."""

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

MODELS = """
from collections import namedtuple
import sys
from torch import nn

Outputs = namedtuple("Outputs", ["logits", "aux_logits"])

def list_models(module): return ["small"] if module is sys.modules[__name__] else ["detector"]

class Small(nn.Module):
    def __init__(self, num_classes, aux_logits):
        super().__init__()
        self.layer, self.aux = nn.Linear(3, num_classes), aux_logits
    def forward(self, images):
        logits = self.layer(images.mean((2, 3)))
        return Outputs(logits, logits) if self.aux else logits

def get_model(name, weights, num_classes=1000, aux_logits=False):
    assert weights is None
    return Small(num_classes, aux_logits)
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
    assert isinstance(made, architecture.CountsCorrect)
    assert 0 <= made.count_correct(logits, targets) <= 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("detector", "torchvision has no classifier 'detector'"),
        ("small:depth=3", "building the model raised TypeError: .*'depth'"),
        ("small:aux_logits=true", "loss of an Outputs raised TypeError: .*must be Tensor"),
    ],
)
def test_what_torchvision_does_not_have_is_a_usage_error(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        try_architecture(f"torchvision:{name}")


def test_if_it_is_not_installed_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"not installed; pip install 'dpbench\[torchvision\]'"):
        architecture.load("torchvision:small")
