"""The protocol of an architecture, and its optional members."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch


class Architecture(Protocol):
    """A model to train, with its data and loss.

    Inputs and targets are a tensor, or a tree of tensors, see `dpbench.data.batch`; the first
    dimension of each tensor is the sample. Optional members: `count_correct` (see
    `SupportsAccuracy`); `items_per_sample`, if a sample holds several items; `notes`, which users
    should read.
    """

    name: str
    item: str
    """Unit in which speeds are counted, in the plural: images, rows, tokens."""
    default_dataset: str

    def build_model(self) -> torch.nn.Module:
        """A new model, initialized from torch's current random state."""

    def synthetic_batch(self, n: int, generator: torch.Generator) -> tuple[Any, Any]:
        """`n` inputs and targets that can be learned."""

    def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        """The mean loss over the batch, 0-dimensional."""


@runtime_checkable
class SupportsAccuracy(Protocol):
    """An architecture whose accuracy can be measured, as it counts right predictions."""

    def count_correct(self, outputs: Any, targets: Any) -> torch.Tensor:
        """The number of targets that are predicted right; int64, 0-dimensional.

        There are as many as the targets have elements; if they are a tree, as many as samples.
        """


def items_per_sample(architecture: Architecture) -> int:
    """Items in a sample: batch sizes count samples, speeds count items."""
    return int(getattr(architecture, "items_per_sample", 1))


def architecture_notes(architecture: Architecture) -> tuple[str, ...]:
    """Sentences that a user should read before believing a speed of it."""
    return tuple(getattr(architecture, "notes", ()))
