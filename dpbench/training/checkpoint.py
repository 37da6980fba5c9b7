"""Checkpoints: the whole state of a training, from which it goes on as if never interrupted.

The file of one is a torch.save of plain values: dicts, lists, tuples, tensors, numbers, strings and
None, which torch.load(weights_only=True) reads. Nothing in a file is ever executed. A run folder
keeps the latest ones and the best; training waits while one is written.
"""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dpbench.codec import Float, decode, encode
from dpbench.errors import FileError, UsageError
from dpbench.files import write_inside, write_named
from dpbench.measure.device import set_random_states
from dpbench.measure.rank_model import RankModel
from dpbench.messages import escaped, option_words
from dpbench.specs.training import RESUME_LATEST, TrainingSpec

HEADER = {"kind": "dpbench training checkpoint", "format_version": 7}
MAX_REASON = 160
BEST = "best.pt"


@dataclass(kw_only=True, slots=True)
class Position:
    """Position between two optimizer steps, and sums up to it; the same on all ranks."""

    step: int = 0
    """Number of optimizer steps done in all epochs, including skipped ones."""
    skipped_steps: int = 0
    epoch_loss_sum: Float = 0.0
    """Sum of the loss over all samples of the epoch so far; at its end, of the whole epoch."""
    best_metric: float | None = None
    """`Score.metric` of the best epoch so far."""
    shares: tuple[float, ...] = ()
    """Shares of the ranks in this epoch's batches; () if they are equal."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Checkpoint:
    """The state of a training between two optimizer steps.

    The tensors of a checkpoint read from a file are on the CPU.
    """

    spec: TrainingSpec
    position: Position
    model: dict[str, Tensor]
    """The state dict of the bare module."""
    optimizers: list[dict[str, Any]]
    """State dicts of the optimizer: one, or one per rank if they differ. Options are not
    restored from a file: they follow from spec and step, also the learning rate."""
    scaler: dict[str, Any] | None
    """State of the loss scaler; None if the loss is not scaled."""
    random_states: list[dict[str, Any]]
    """States of torch's random number generators, by rank."""
    samples_sha256: str
    """`Splits.sha256` of the training and test samples."""
    file: str | None = None
    """File from which it was read; not stored."""


_PLAIN = [f.name for f in fields(Checkpoint) if f.name not in ("spec", "position", "file")]


def restore(checkpoint: Checkpoint, model: RankModel, rank: int) -> None:
    """Give a rank the state in a checkpoint of the same spec, whose tensors may be changed from
    then on. Raises UsageError if something in it does not fit."""
    try:
        model.module.load_state_dict(checkpoint.model)
        saved = checkpoint.optimizers[rank if len(checkpoint.optimizers) > 1 else 0]
        pairs = zip(model.optimizer.param_groups, saved["param_groups"], strict=True)
        options = [{**now, "params": before["params"]} for now, before in pairs]
        model.optimizer.load_state_dict({"state": saved["state"], "param_groups": options})
        if checkpoint.scaler is not None:
            model.scaler.load_state_dict(checkpoint.scaler)
        set_random_states(checkpoint.random_states[rank])
    except Exception as error:  # an unexpected part of a file may raise any
        reason = " ".join(str(error).split())
        raise UsageError(
            f"{checkpoint.file}: it does not fit this training: {type(error).__name__}: {reason}"
        ) from error


def to_bytes(checkpoint: Checkpoint) -> bytes:
    """The content of the checkpoint's file."""
    content = {name: getattr(checkpoint, name) for name in _PLAIN}
    spec, position = encode(checkpoint.spec), encode(checkpoint.position)
    file = io.BytesIO()
    torch.save({**HEADER, "spec": spec, "position": position, **content}, file)
    return file.getvalue()


def from_bytes(data: bytes, where: str) -> Checkpoint:
    """The checkpoint whose file, called `where`, has this content.

    Raises UsageError in one line, with the file and the reason, for a file that is truncated or
    changed, of another version, or not written by dpbench.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as parts:
            if parts.testzip() is not None:  # torch writes checksums and does not verify them
                raise zipfile.BadZipFile("a checksum does not match")
        content = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # damaged bytes can make the readers raise anything
        reason = escaped(str(error).partition("\n")[0], MAX_REASON)
        raise UsageError(
            f"{where}: it is damaged, or no checkpoint ({type(error).__name__}: {reason})"
        ) from None
    if not isinstance(content, dict) or any(content.get(k) != v for k, v in HEADER.items()):
        raise UsageError(f"{where}: this is no checkpoint of dpbench train, or of another version")
    try:
        return Checkpoint(
            spec=decode(TrainingSpec, content["spec"]),
            position=decode(Position, content["position"]),
            file=where,
            **{name: content[name] for name in _PLAIN},
        )
    except (KeyError, FileError) as error:
        raise UsageError(f"{where}: {error}") from None


def latest_checkpoint(folder: Path) -> Path | None:
    """The checkpoint with the most optimizer steps; None if there is none."""
    return next(reversed(_by_steps(folder)), None)


def _by_steps(folder: Path) -> list[Path]:
    steps = {path: path.stem.removeprefix("step-") for path in folder.glob("step-*.pt")}
    ours = (path for path, step in steps.items() if step.isdecimal())  # a user may keep others
    return sorted(ours, key=lambda path: int(steps[path]))


def save_checkpoint(
    folder: Path, checkpoint: Checkpoint, *, keep: int, best: bool, also: str | None = None
) -> Path:
    """Write the checkpoint into a folder, of which the `keep` latest stay and the best one.

    It is also written to the user's file `also`. A process that is killed leaves whole checkpoints.
    Returns the file; raises FileError if it cannot be written.
    """
    data = to_bytes(checkpoint)
    path = folder / f"step-{checkpoint.position.step:08}.pt"
    # The best first: if it were lost, this step would never be the best again.
    targets = [path.with_name(BEST), path] if best else [path]
    try:
        for target in targets:
            write_inside(target, data)
        others = [other for other in _by_steps(folder) if other != path]
        for old in others[: max(0, len(others) + 1 - keep)]:
            old.unlink(missing_ok=True)
        if also is not None:
            write_named(Path(also), data)
    except FileError as error:
        raise FileError(
            f"{error}; the checkpoints in {folder} are whole, and "
            f"{option_words('resume', RESUME_LATEST)} goes on from the latest"
        ) from None
    return path
