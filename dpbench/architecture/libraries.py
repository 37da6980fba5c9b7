"""Models of timm, torchvision and transformers, with random weights: nothing is downloaded.

Image classifiers train on synthetic images. A language model restores masked tokens if transformers
lists it as a masked language model (BERT), otherwise it predicts the next token (GPT-2, Llama).

`sources` finds the function from_LIBRARY by the library's name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from dpbench.architecture.protocol import GeneratedArchitecture
from dpbench.architectures._image_classifier import ImageClassifier
from dpbench.architectures._synthetic_images import batch
from dpbench.architectures._synthetic_text import chain
from dpbench.errors import UnknownName, UsageError

IMAGENET_SIDE = 224
IMAGENET_CLASSES = 1000
LENGTH = 128
"""Tokens of a sequence by default, if the model takes so many."""
MASKED = 0.15
"""Share of masked tokens."""


class LibraryClassifier(GeneratedArchitecture, ImageClassifier):  # type: ignore[misc]
    """A library's image classifier: images (n, channels, side, side) to logits."""

    def __init__(
        self,
        name: str,
        build: Callable[[], torch.nn.Module],
        *,
        shape: tuple[int, int, int],
        classes: int,
    ) -> None:
        self.name = name
        self.build_model = build
        self.shape = shape
        self.classes = classes

    def synthetic_batch(
        self, n: int, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Images, float32 (n, channels, side, side), and their classes, int64 (n,)."""
        images, classes = batch(n, generator, self.shape, self.classes)
        return images, classes


def from_timm(model: str, *, image: int | None = None, **fields: Any) -> LibraryClassifier:
    """timm's model of that name; `image` is the side of the images, by default the model's own.

    Other options go to timm.create_model. Raises UsageError for an unknown name, and for a file to
    load: some versions of timm unpickle it, and a results folder may name the model.
    """
    import timm  # type: ignore[import-not-found, unused-ignore]

    if model not in timm.list_models():
        raise UsageError(f"timm has no model {model!r}; timm.list_models() lists them")
    if "checkpoint_path" in fields:
        raise UsageError(
            f"timm:{model}: got checkpoint_path={fields['checkpoint_path']}, but models start from "
            "random weights; leave it out"
        )
    trained = timm.get_pretrained_cfg(model)
    channels, side, _ = trained.input_size if trained else (3, IMAGENET_SIDE, IMAGENET_SIDE)
    side = image or fields.get("img_size") or side
    return LibraryClassifier(
        f"timm:{model}",
        lambda: timm.create_model(model, pretrained=False, **fields),
        shape=(fields.get("in_chans", channels), side, side),
        classes=fields.get("num_classes", trained.num_classes if trained else IMAGENET_CLASSES),
    )


def from_torchvision(model: str, *, image: int | None = None, **fields: Any) -> LibraryClassifier:
    """torchvision's classifier of that name; `image` is the side of the images, by default 224.

    Other options go to torchvision.models.get_model. Raises UsageError for an unknown name.
    """
    from torchvision import models  # type: ignore[import-not-found, import-untyped, unused-ignore]

    if model not in models.list_models(module=models):
        raise UsageError(
            f"torchvision has no classifier {model!r}; torchvision.models.list_models() lists them"
        )
    side = image or fields.get("image_size") or IMAGENET_SIDE
    return LibraryClassifier(
        f"torchvision:{model}",
        lambda: models.get_model(model, weights=None, **fields),
        shape=(3, side, side),
        classes=fields.get("num_classes", IMAGENET_CLASSES),
    )


class LanguageModel(GeneratedArchitecture):
    """A language model: next tokens, or all tokens where some were masked."""

    item = "tokens"

    def __init__(
        self, name: str, build: Callable[[], torch.nn.Module], length: int, mask: int | None
    ) -> None:
        """`build` makes a model from input_ids, int64 (n, length), to logits; `mask` is the token
        that hides others, None to predict the next ones."""
        self.name = name
        self.items_per_sample = length
        self.build_model = build
        self._mask = mask

    def synthetic_batch(
        self, n: int, generator: torch.Generator
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Tokens and the ones to predict at each place, both int64 (n, length)."""
        text = chain(n, self.items_per_sample + 1, generator)
        if self._mask is None:
            return {"input_ids": text[:, :-1].contiguous()}, text[:, 1:].contiguous()
        text = text[:, 1:].contiguous()
        hidden = torch.rand(text.shape, generator=generator, device=generator.device) < MASKED
        return {"input_ids": text.masked_fill(hidden, self._mask)}, text

    def loss(self, outputs: Any, targets: torch.Tensor) -> torch.Tensor:
        """The mean cross-entropy over all tokens."""
        return F.cross_entropy(outputs.logits.flatten(0, 1), targets.flatten())


def from_transformers(config: str, *, length: int | None = None, **fields: Any) -> LanguageModel:
    """The language model of a model type, such as "gpt2".

    `length` is the number of tokens in a sequence; other options are fields of the config. Raises
    UsageError for an unknown type or field, and for a model of another kind.
    """
    import transformers  # type: ignore[import-not-found, unused-ignore]

    if config not in transformers.CONFIG_MAPPING:
        raise UsageError(
            f"transformers has no model type {config!r}; expected one such as gpt2, llama or bert"
        )
    kind = transformers.CONFIG_MAPPING[config]
    known = [*kind().to_dict(), *kind.attribute_map]
    for field in fields:
        if field not in known:  # a config would ignore it
            raise UnknownName(f"field of {kind.__name__}", field, known)
    # Cached keys and values are for generation only.
    caching = {"use_cache": False} if "use_cache" in known else {}
    made = kind(**(caching | fields))
    masks = type(made) in transformers.MODEL_FOR_MASKED_LM_MAPPING
    if not masks and type(made) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UsageError(
            f"transformers:{config}: {kind.__name__} configures no language model; expected a "
            "causal or a masked one, such as gpt2, llama or bert"
        )
    auto: Any = transformers.AutoModelForMaskedLM if masks else transformers.AutoModelForCausalLM
    longest = getattr(made, "max_position_embeddings", LENGTH)
    return LanguageModel(
        f"transformers:{config}",
        lambda: auto.from_config(made),
        length or min(LENGTH, longest),
        made.vocab_size - 1 if masks else None,  # the synthetic text does not have it
    )
