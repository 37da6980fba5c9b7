"""Models of timm, torchvision and transformers, with random weights: nothing is downloaded.

Image classifiers train on synthetic images. A language model predicts masked tokens if transformers
lists it as a masked language model (BERT), otherwise the next token (GPT-2, Llama).

`sources` finds the function from_LIBRARY by the library's name.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F

from dpbench.architecture.protocol import GeneratedArchitecture
from dpbench.architectures._synthetic_images import batch
from dpbench.architectures._synthetic_text import ALPHABET, chain
from dpbench.errors import UnknownName, UsageError

IMAGENET_SIDE = 224
IMAGENET_CLASSES = 1000


class ImageClassifier(GeneratedArchitecture):
    """A library's image classifier: images (n, channels, side, side) to logits."""

    item = "images"

    def __init__(
        self,
        name: str,
        build: Callable[[], torch.nn.Module],
        *,
        shape: tuple[int, int, int],
        classes: int,
    ) -> None:
        """Raises ValueError for an empty shape or no classes."""
        if min(shape) < 1 or classes < 1:
            raise ValueError(
                f"got images {shape} and {classes} classes, expected at least 1 of each"
            )
        self.name = name
        self.build_model = build
        self._shape = shape
        self._classes = classes

    def synthetic_batch(
        self, n: int, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Images, float32 (n, channels, side, side), and their classes, int64 (n,)."""
        images, classes = batch(n, generator, self._shape, self._classes)
        return images, classes

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean cross-entropy; raises UsageError for outputs with auxiliary logits."""
        if not isinstance(outputs, torch.Tensor):
            raise UsageError(
                f"architecture {self.name!r}: the model returned a {type(outputs).__name__}, "
                "expected a tensor of logits; perhaps with the option aux_logits=false"
            )
        return F.cross_entropy(outputs, targets)

    def count_correct(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Number of images whose class has the largest logit; int64, 0-dimensional."""
        return (outputs.argmax(dim=1) == targets).sum()


def from_timm(model: str, *, image: int | None = None, **fields: Any) -> ImageClassifier:
    """timm's model of that name; `image` is the side of the images, by default the model's own.

    Other options go to timm.create_model. Raises UsageError for an unknown name, and for a file to
    load: some versions of timm unpickle it, and a results folder may name the model.
    """
    import timm  # type: ignore[import-not-found, unused-ignore]

    if model not in (known := timm.list_models()):
        raise _unknown(f"model {model!r} of timm, which knows {len(known)}", model, known)
    if "checkpoint_path" in fields:
        raise UsageError(
            f"timm:{model}: got checkpoint_path={fields['checkpoint_path']}, but models start from "
            "random weights; leave it out"
        )
    trained = timm.get_pretrained_cfg(model)
    channels, side, _ = trained.input_size if trained else (3, IMAGENET_SIDE, IMAGENET_SIDE)
    side = image or fields.get("img_size") or side
    return ImageClassifier(
        f"timm:{model}",
        lambda: timm.create_model(model, pretrained=False, **fields),
        shape=(fields.get("in_chans", channels), side, side),
        classes=fields.get("num_classes", trained.num_classes if trained else IMAGENET_CLASSES),
    )


def from_torchvision(model: str, *, image: int | None = None, **fields: Any) -> ImageClassifier:
    """torchvision's classifier of that name; `image` is the side of the images, by default 224.

    Other options go to torchvision.models.get_model. Raises UsageError for an unknown name.
    """
    from torchvision import models  # type: ignore[import-not-found, unused-ignore]

    if model not in (known := models.list_models(module=models)):
        raise _unknown(f"model {model!r} of torchvision, which knows {len(known)}", model, known)
    side = image or fields.get("image_size") or IMAGENET_SIDE
    return ImageClassifier(
        f"torchvision:{model}",
        lambda: models.get_model(model, weights=None, **fields),
        shape=(3, side, side),
        classes=fields.get("num_classes", IMAGENET_CLASSES),
    )


def _unknown(what: str, name: str, known: Iterable[str]) -> UsageError:
    """An error with the nearest names; a library has too many to list."""
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    guess = f" Did you mean {' or '.join(near)}?" if near else ""
    return UsageError(f"unknown {what}.{guess}")


LENGTH = 128
"""Tokens of a sequence by default, if the model takes so many."""
TO_PREDICT = 0.15
"""Share of masked tokens in each sequence."""


class _LanguageModel(GeneratedArchitecture):
    item = "tokens"

    def __init__(self, name: str, auto: Any, config: Any, length: int) -> None:
        """Raises ValueError for too few tokens for the synthetic text."""
        if config.vocab_size <= ALPHABET or length < 2:
            raise ValueError(
                f"got a vocabulary of {config.vocab_size} and length {length}, expected at least "
                f"{ALPHABET + 1} and 2"
            )
        self.name = name
        self.items_per_sample = length
        self._auto = auto
        self._config = config

    def build_model(self) -> torch.nn.Module:
        """A new model of the config: input_ids, int64 (n, length), to logits."""
        return self._auto.from_config(self._config)  # type: ignore[no-any-return]


class CausalLanguageModel(_LanguageModel):
    """A language model that predicts the next token at every position."""

    def synthetic_batch(
        self, n: int, generator: torch.Generator
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Tokens and the ones that follow them, both int64 (n, length)."""
        text = chain(n, self.items_per_sample + 1, generator)
        return {"input_ids": text[:, :-1].contiguous()}, text[:, 1:].contiguous()

    def loss(self, outputs: Any, targets: torch.Tensor) -> torch.Tensor:
        """The mean cross-entropy over all tokens."""
        return F.cross_entropy(outputs.logits.flatten(0, 1), targets.flatten())

    def count_correct(self, outputs: Any, targets: torch.Tensor) -> torch.Tensor:
        """Number of next tokens that were the likeliest; int64, 0-dimensional."""
        correct: torch.Tensor = (outputs.logits.argmax(dim=-1) == targets).sum()
        return correct


class MaskedLanguageModel(_LanguageModel):
    """A language model that predicts masked tokens, equally many in every sequence."""

    def synthetic_batch(
        self, n: int, generator: torch.Generator
    ) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Tokens, int64 (n, length); masked positions and their tokens, int64 (n, masked)."""
        text = chain(n, self.items_per_sample, generator)
        masked = max(1, int(TO_PREDICT * self.items_per_sample))
        order = torch.rand(text.shape, generator=generator, device=generator.device).argsort(dim=1)
        places = order[:, :masked]
        shown = text.scatter(1, places, self._config.vocab_size - 1)  # the text does not have it
        return {"input_ids": shown}, {"places": places, "tokens": text.gather(1, places)}

    def loss(self, outputs: Any, targets: dict[str, torch.Tensor]) -> torch.Tensor:
        """The mean cross-entropy over the masked tokens of all sequences."""
        logits, places = outputs.logits, targets["places"]
        chosen = logits.gather(1, places.unsqueeze(-1).expand(-1, -1, logits.shape[-1]))
        return F.cross_entropy(chosen.flatten(0, 1), targets["tokens"].flatten())


def from_transformers(
    config: str, *, length: int | None = None, **fields: Any
) -> CausalLanguageModel | MaskedLanguageModel:
    """The language model of a model type ("gpt2") or config class ("GPT2Config").

    `length` is the number of tokens in a sequence; other options are fields of the config. Raises
    UsageError for an unknown type or field, and for a model of another kind.
    """
    import transformers  # type: ignore[import-not-found, unused-ignore]

    made = _config(transformers, config, fields)
    kind: type[CausalLanguageModel] | type[MaskedLanguageModel]
    if getattr(made, "is_encoder_decoder", False):
        raise UsageError(
            f"transformers:{config}: an encoder with a decoder; expected only one of them"
        )
    if type(made) in transformers.MODEL_FOR_MASKED_LM_MAPPING:
        kind, auto = MaskedLanguageModel, transformers.AutoModelForMaskedLM
    elif type(made) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        kind, auto = CausalLanguageModel, transformers.AutoModelForCausalLM
    else:
        raise UsageError(
            f"transformers:{config}: {type(made).__name__} configures no language model; expected "
            "a causal or a masked one, such as gpt2, llama or bert"
        )
    longest = getattr(made, "max_position_embeddings", LENGTH)
    return kind(f"transformers:{config}", auto, made, length or min(LENGTH, longest))


def _config(transformers: Any, config: str, fields: dict[str, Any]) -> Any:
    kind = getattr(transformers, config, None) if config.endswith("Config") else None
    if config in transformers.CONFIG_MAPPING:
        kind = transformers.CONFIG_MAPPING[config]
    if kind is None:
        raise _unknown(
            f"model type or config {config!r} of transformers", config, transformers.CONFIG_MAPPING
        )
    known = [*kind().to_dict(), *kind.attribute_map]
    for field in fields:
        if field not in known:  # a config would ignore it
            raise UnknownName(f"field of {kind.__name__}", field, known)
    # Cached keys and values are for generation only.
    caching = {"use_cache": False} if "use_cache" in known else {}
    return kind(**(caching | fields))
