"""Whether the samples of a dataset fit an architecture, checked before any is read.

An architecture accepts samples that look like its own synthetic batch; its member `classes` may say
how many classes it distinguishes. Its model is not run: on the meta device that takes torch two
seconds the first time, and in memory it takes long for a large model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dpbench.data.registry import SampleTraits, shape_in_words
from dpbench.parallel.tree import tensors

if TYPE_CHECKING:
    from dpbench.architecture import Architecture


def misfit(sample: SampleTraits, architecture: Architecture) -> str | None:
    """Description of the samples that `architecture` takes instead; None if it takes `sample`.

    An architecture without `classes` fails in its first step if it has too few; so does one that
    takes other samples but cannot make a synthetic batch.
    """
    try:
        inputs, targets = architecture.synthetic_batch(1, torch.Generator().manual_seed(0))
    except Exception:  # a user's, without a synthetic batch: there is nothing to compare with
        return None
    takes = f"{_in_words(inputs)} with {_in_words(targets)}"
    if not _of_one_kind(sample, inputs, targets):
        return takes
    classes: int | None = getattr(architecture, "classes", None)
    if sample.classes is not None and classes is not None and classes < sample.classes:
        return f"{takes} of {classes} classes"
    return None


def context_of(architecture: Architecture) -> int:
    """Number of tokens in a sequence, for an architecture that takes text."""
    inputs, _ = architecture.synthetic_batch(1, torch.Generator().manual_seed(0))
    return int(inputs.shape[1])


def _of_one_kind(sample: SampleTraits, inputs: object, targets: object) -> bool:
    """Whether dtypes and shapes are equal, except for the length of a sequence."""
    if not (isinstance(inputs, torch.Tensor) and isinstance(targets, torch.Tensor)):
        return False
    if inputs.dtype != getattr(torch, sample.dtype):
        return False
    if targets.dtype != getattr(torch, sample.target_dtype):
        return False
    if sample.shape is None:
        return inputs.dim() == 2 and inputs.shape == targets.shape
    return inputs.shape[1:] == sample.shape and targets.dim() == 1


def _in_words(tree: object) -> str:
    """Shape and dtype of every tensor of one sample, such as "13 float32 and 26 int64"."""
    return " and ".join(
        f"{shape_in_words(tuple(tensor.shape[1:]))} {str(tensor.dtype).removeprefix('torch.')}"
        for tensor in tensors(tree)
    )
