"""The protocol of an architecture, and its optional members."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch


class Architecture(Protocol):
    """A model to train, with its data and loss.

    Inputs and targets are a tensor, or a tree of tensors, see `dpbench.data.batch`; the first
    dimension of each tensor is the sample. One that can tell right predictions from wrong ones also
    has `count_correct`, see `CountsCorrect`; one whose samples hold several items each has
    `items_per_sample`; one with embeddings of sparse=True has `sparse_gradients`; one that has
    something to say of itself has `notes`.
    """

    name: str
    item: str
    """Unit in which speeds are counted, in the plural: images, rows, tokens."""
    default_dataset: str

    @property
    def flops_per_item(self) -> float | None:
        """Floating-point operations of forward and backward for one item (2 per multiply-add).

        None where nobody has derived them; a trial counts what ran in any case.
        """

    def build_model(self) -> torch.nn.Module:
        """A new model, initialised from torch's current random state."""

    def synthetic_batch(self, n: int, generator: torch.Generator) -> tuple[Any, Any]:
        """`n` inputs and targets that can be learnt."""

    def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        """The mean loss over the batch, 0-dimensional."""


@runtime_checkable
class CountsCorrect(Protocol):
    """Optional members of an architecture that counts right predictions."""

    def count_correct(self, outputs: Any, targets: Any) -> torch.Tensor:
        """The number of targets that are predicted right; int64, 0-dimensional.

        There are as many as the targets have elements; where they are a tree, as many as samples.
        """


def items_per_sample(architecture: Architecture) -> int:
    """Items in a sample: batch sizes count samples, speeds count items. 1 where it is not said."""
    return int(getattr(architecture, "items_per_sample", 1))


def notes(architecture: Architecture) -> tuple[str, ...]:
    """Notes that a user should read before believing a speed of it, one sentence each."""
    return tuple(getattr(architecture, "notes", ()))


def sparse_gradients(architecture: Architecture) -> bool:
    """Whether some of its model's gradients are sparse tensors; False where it is not said."""
    return bool(getattr(architecture, "sparse_gradients", False))


def missing_members(candidate: object) -> list[str]:
    """The members that an architecture must have and `candidate` has not."""
    methods = [name for name in vars(Architecture) if not name.startswith("_")]
    members = [*Architecture.__annotations__, *methods]
    return [member for member in members if not hasattr(candidate, member)]


class GeneratedArchitecture:
    """Members of architectures that dpbench generates from the code of others.

    Nobody has run those before, so that they have to be tried out.
    """

    default_dataset: str = "synthetic"
    flops_per_item: float | None = None
    """None, as nobody has derived them."""
