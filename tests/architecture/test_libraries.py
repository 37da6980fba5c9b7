"""Models of timm, torchvision and transformers; small packages of the same names stand for them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from dpbench import architecture
from dpbench.errors import UsageError
from dpbench.measure.try_out import load_tried

TIMM = """
from types import SimpleNamespace
from torch import nn

def list_models(): return ["tiny", "other"]
def get_pretrained_cfg(name): return SimpleNamespace(input_size=(3, 8, 8), num_classes=4)
def create_model(name, pretrained, in_chans=3, num_classes=4, img_size=8, checkpoint_path=None):
    assert not pretrained
    if checkpoint_path: open(checkpoint_path)
    return nn.Sequential(nn.Flatten(), nn.Linear(in_chans * img_size**2, num_classes))
"""
TORCHVISION = """
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
TRANSFORMERS = """
from types import SimpleNamespace
from torch import nn

class GPTConfig:
    attribute_map = {"max_position_embeddings": "n_positions"}
    def __init__(self, vocab_size=40, n_positions=16, width=8, use_cache=True, **ignored):
        self.vocab_size, self.n_positions, self.width = vocab_size, n_positions, width
        self.use_cache, self.max_position_embeddings = use_cache, n_positions
    def to_dict(self): return dict(vars(self))

class BertConfig(GPTConfig): pass
class ViTConfig(GPTConfig): pass

class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        assert not config.use_cache
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.head = nn.Linear(config.width, config.vocab_size)
    def forward(self, input_ids):
        return SimpleNamespace(logits=self.head(self.embedding(input_ids)))

class AutoModelForCausalLM:
    from_config = Model
AutoModelForMaskedLM = AutoModelForCausalLM
CONFIG_MAPPING = {"gpt": GPTConfig, "bert": BertConfig, "vit": ViTConfig}
MODEL_FOR_CAUSAL_LM_MAPPING = {GPTConfig: Model, BertConfig: Model}
MODEL_FOR_MASKED_LM_MAPPING = {BertConfig: Model}
"""


@pytest.fixture(autouse=True)
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, source in (
        ("timm/__init__.py", TIMM),
        ("torchvision/__init__.py", ""),
        ("torchvision/models.py", TORCHVISION),
        ("transformers/__init__.py", TRANSFORMERS),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(source)
    for name in [*sys.modules]:
        if name.partition(".")[0] in ("timm", "torchvision", "transformers"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("timm", "torchvision", "torchvision.models", "transformers"):
        sys.modules.pop(name, None)


def batch(made: architecture.Architecture, n: int = 3) -> tuple[Any, Any]:
    return made.synthetic_batch(n, torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("name", "shape", "outputs"),
    [
        ("timm:tiny", (3, 8, 8), 4),
        ("timm:tiny:num_classes=7,in_chans=1,img_size=6", (1, 6, 6), 7),
        ("torchvision:small", (3, 224, 224), 1000),
        ("torchvision:small:num_classes=5,image=16", (3, 16, 16), 5),
    ],
)
def test_a_classifier_of_images_is_of_the_size_that_its_options_say(
    name: str, shape: tuple[int, ...], outputs: int
) -> None:
    made = load_tried(name)
    images, targets = batch(made)
    logits = made.build_model()(images)
    assert (images.shape[1:], logits.shape[1], made.item) == (shape, outputs, "images")
    assert isinstance(made, architecture.CountsCorrect)
    assert 0 <= made.count_correct(logits, targets) <= 3
    assert made.name == name


def test_a_language_model_predicts_what_its_type_is_for() -> None:
    causal = load_tried("transformers:gpt:width=4")
    (inputs, targets), items = batch(causal), architecture.items_per_sample(causal)
    assert (inputs["input_ids"].shape, targets.shape, items) == ((3, 16), (3, 16), 16)
    assert torch.equal(inputs["input_ids"][:, 1:], targets[:, :-1])
    inputs, targets = batch(load_tried("transformers:bert:length=20"), 50)
    hidden = inputs["input_ids"] != targets
    assert (inputs["input_ids"][hidden] == 39).all()
    assert 0.1 < hidden.float().mean() < 0.2
    assert (targets != 39).all()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("timm:tin", r"timm has no model 'tin'; timm.list_models\(\) lists them"),
        ("timm:tiny:image=9", "a step on 2 samples raised RuntimeError"),
        ("timm:tiny:depth=3", "building the model raised TypeError: .*'depth'"),
        ("timm:tiny:checkpoint_path=evil.pt", "models start from random weights; leave it out"),
        ("torchvision:detector", "torchvision has no classifier 'detector'"),
        (
            "torchvision:small:aux_logits=true",
            "loss of an Outputs raised TypeError: .*must be Tensor",
        ),
        ("transformers:NoConfig", "transformers has no model type 'NoConfig'"),
        ("transformers:gpt:widht=3", "unknown field of GPTConfig 'widht'. Did you mean 'width'"),
        ("transformers:vit", "ViTConfig configures no language model; expected a causal"),
    ],
)
def test_what_a_library_does_not_have_is_a_usage_error(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_tried(name)


def test_a_library_that_is_not_installed_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"timm is not installed; pip install 'dpbench\[timm"):
        architecture.load("timm:tiny")
