"""Checkpoints: the whole state of a training, from which it goes on as if never interrupted.

The file of one is a torch.save of plain values, which torch.load(weights_only=True) reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from torch import Tensor

from dpbench.codec import decode, encode
from dpbench.errors import StoreError, UsageError
from dpbench.specs.training import TrainingSpec
from dpbench.training import archive
from dpbench.training.archive import HostBuffers

MAGIC = "dpbench training checkpoint"
FORMAT_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Checkpoint:
    """The state of a training between two optimizer steps.

    The tensors of a checkpoint read from a file are on the CPU.
    """

    spec: TrainingSpec
    epoch: int
    """Epoch to continue with, from 0."""
    window: int
    """Window of that epoch to continue with, from 0."""
    step: int
    """Number of optimizer steps done."""
    model: dict[str, Tensor]
    """The state dict of the bare module."""
    optimizers: list[dict[str, Any]]
    """State dicts of the optimizer: one, or one per process if the ranks' differ. Options are not
    restored from a file: they follow from spec and step, also the learning rate."""
    scaler: dict[str, Any] | None
    """State of the loss scaler; None if the loss is not scaled."""
    random_states: list[dict[str, Any]]
    """Random states of the processes, see `random_state`."""
    shares: tuple[float, ...]
    """Shares of the processes in this epoch's batches; () if they are equal."""
    samples_sha256: str
    """`Splits.sha256` of the training and test samples."""
    best_metric: float | None
    """`Score.metric` of the best epoch so far."""
    progress: dict[str, Any] = field(default_factory=dict)
    """Running sums of the epoch: plain numbers."""
    source: str | None = None
    """File from which it was read; not stored."""


_STORED = tuple(f.name for f in fields(Checkpoint) if f.name not in ("spec", "shares", "source"))


def to_plain(checkpoint: Checkpoint) -> dict[str, Any]:
    """The stored parts of `checkpoint`."""
    return {
        "kind": MAGIC,
        "format_version": FORMAT_VERSION,
        "spec": encode(checkpoint.spec),
        "shares": list(checkpoint.shares),
        **{name: getattr(checkpoint, name) for name in _STORED},
    }


def to_bytes(checkpoint: Checkpoint) -> bytes:
    """The content of the checkpoint's file; raises TypeError for parts that are not plain."""
    return archive.dumps(HostBuffers().take(to_plain(checkpoint)))


def from_bytes(data: bytes, where: str) -> Checkpoint:
    """The checkpoint whose file, called `where`, has this content.

    Raises UsageError in one line, with the file and the reason, for anything that is not a whole
    checkpoint of this format. Nothing in `data` is executed.
    """
    content = archive.loads(data, where)
    if not isinstance(content, dict) or content.get("kind") != MAGIC:
        raise UsageError(f"{where}: this is no checkpoint of dpbench train")
    if (version := content.get("format_version")) != FORMAT_VERSION:
        raise UsageError(
            f"{where}: got format version {version}; this dpbench reads {FORMAT_VERSION}"
        )
    try:
        spec = decode(TrainingSpec, content["spec"])
        stored = {name: content[name] for name in _STORED}
        return Checkpoint(spec=spec, shares=tuple(content["shares"]), source=where, **stored)
    except (KeyError, StoreError) as error:
        raise UsageError(f"{where}: {error}") from None
