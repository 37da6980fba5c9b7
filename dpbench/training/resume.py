"""The checkpoint to resume from: rank 0 finds and reads it, and all ranks use the same one, or
none.

If each rank looked for itself and some found nothing, they would diverge.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dpbench import units
from dpbench.codec import differing_fields
from dpbench.data.user_code import change_words
from dpbench.errors import StoreError, UsageError
from dpbench.files import open_to_read
from dpbench.measure.rank_group import RankGroup
from dpbench.messages import Say
from dpbench.specs.training import RESUME_LATEST
from dpbench.training.agreement import refused_by_all
from dpbench.training.archive import Damaged
from dpbench.training.checkpoint import Checkpoint, from_bytes
from dpbench.training.checkpoint_folder import (
    latest_checkpoint,
    set_checkpoint_aside,
    steps_in_name,
)
from dpbench.training.job import TrainingJob
from dpbench.training.progress import Sums
from dpbench.training.run_folder import CHECKPOINTS


@dataclass(frozen=True, slots=True)
class _Found:
    """The checkpoint that rank 0 has read, or why it could not."""

    path: str | None = None
    data: bytes = b""
    checkpoint: Checkpoint | None = None
    error: str | None = None
    notes: tuple[str, ...] = ()
    """Notes on checkpoints that were skipped, with the reason."""


def agreed_checkpoint(
    job: TrainingJob, ranks: RankGroup, say: Say = lambda _: None
) -> Checkpoint | None:
    """The checkpoint that the job continues from; None if it starts from the beginning.

    This is a collective. Only rank 0 looks for the file, and sends its bytes to the others over the
    control group. With RESUME_LATEST, damaged files are set aside, and rank 0 reports which: a
    batch system restarts a job repeatedly, with nobody there to remove them.

    Raises UsageError, in one line with file and reason, the same on every rank: the file is not
    there, cannot be read, or is no checkpoint of dpbench; it belongs to another training, or to
    one with more epochs done than the job has; a later one lies in the job's folder.
    """
    if job.resume is None:
        return None
    found = ranks.on_first(lambda: _look(job))
    for note in found.notes if found else ():
        say(note)
    words = None if found is None else json.dumps([found.path, found.error]).encode()
    path, error = json.loads(broadcast_bytes(words, ranks, limit_bytes=LONGEST_WORDS_BYTES))
    if error is not None:
        raise UsageError(error)
    if path is None:
        return None
    content = None if found is None else found.data
    data = broadcast_bytes(content, ranks, limit_bytes=memory_bytes())
    checkpoint = found.checkpoint if found else None
    with refused_by_all(ranks):  # rank 0 could read it, but others may have another torch
        if found is None:
            checkpoint = from_bytes(data, path)
    return checkpoint


def opening_note(job: TrainingJob, checkpoint: Checkpoint | None) -> str | None:
    """Message about a resumption; None if none was asked for."""
    if job.resume is None:
        return None
    if checkpoint is None:
        return f"no checkpoint in {job.folder / CHECKPOINTS}: training starts from the beginning"
    epochs = job.spec.epochs
    if checkpoint.epoch >= epochs:
        trained = units.counted(epochs, "epoch")
        return f"{checkpoint.source} has all {trained}: nothing is left to train"
    most, done = job.run.max_steps, units.counted(checkpoint.step, "optimizer step")
    if most is not None and checkpoint.step >= most:
        return (
            f"{checkpoint.source} is after {done}: with --max-steps {most} nothing is left to train"
        )
    return (
        f"training goes on from {checkpoint.source}, after {done}, in epoch "
        f"{checkpoint.epoch + 1} of {epochs}"
    )


def changed_files_note(job: TrainingJob, checkpoint: Checkpoint | None) -> str | None:
    """Message if the user's files differ from those that the checkpoint was trained with."""
    if checkpoint is None:
        return None
    before, now = checkpoint.spec.workload, job.spec.workload
    if before.files_sha256 == now.files_sha256:
        return None
    words = change_words(before, now, f"since {checkpoint.source}")
    return f"{words}; the parameters fit, and training goes on with what is there now"


def require_fit(
    checkpoint: Checkpoint, module: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Raise UsageError unless the checkpoint's tensors have the names, shapes and dtypes of the
    bare `module` and its `optimizer`."""
    misfits = [*_model_misfits(checkpoint.model, module.state_dict())]
    for state in checkpoint.optimizers:
        misfits += _optimizer_misfits(state, optimizer)
    if misfits:
        more = f" (and {len(misfits) - 1} more)" if len(misfits) > 1 else ""
        raise UsageError(f"{checkpoint.source} does not fit the model: {misfits[0]}{more}")


def require_position(
    checkpoint: Checkpoint, sums: Sums, *, steps_per_epoch: int, samples_sha256: str
) -> None:
    """Raise UsageError unless the checkpoint belongs to these samples, and was made between two of
    their windows."""
    where = f"{checkpoint.source}: it does not fit this training"
    if checkpoint.samples_sha256 != samples_sha256:
        raise UsageError(
            f"{where}: it was trained on other samples, by their hash "
            f"{checkpoint.samples_sha256[:12]}; those here have {samples_sha256[:12]}; give the "
            "data that it was trained on, or train anew without --resume"
        )
    if checkpoint.window >= steps_per_epoch:
        raise UsageError(
            f"{where}: it goes on with window {checkpoint.window} of an epoch of "
            f"{steps_per_epoch}, counted from 0"
        )
    expected = checkpoint.epoch * steps_per_epoch + checkpoint.window
    if checkpoint.step != expected:
        raise UsageError(
            f"{where}: it is after {checkpoint.step} steps, where {checkpoint.epoch} epochs of "
            f"{steps_per_epoch} and {checkpoint.window} windows are {expected}"
        )
    if (sums.final_loss is None) != (checkpoint.epoch == 0):
        raise UsageError(
            f"{where}: its final loss is {sums.final_loss} after {checkpoint.epoch} whole epochs"
        )


def _look(job: TrainingJob) -> _Found:
    """Find, read and check the checkpoint; with RESUME_LATEST the latest one that is intact."""
    folder = job.folder / CHECKPOINTS
    notes: list[str] = []
    while True:
        path = latest_checkpoint(folder) if job.resume == RESUME_LATEST else Path(str(job.resume))
        if path is None:
            return _Found(notes=tuple(notes))
        try:
            data = _read(path, named_by_user=job.resume != RESUME_LATEST)
            checkpoint = from_bytes(data, str(path))
            _require_same_training(checkpoint, job)
            _require_latest(checkpoint, folder)
            return _Found(str(path), data, checkpoint, notes=tuple(notes))
        except UsageError as error:
            if job.resume != RESUME_LATEST or not isinstance(error, Damaged):
                return _Found(error=str(error), notes=tuple(notes))
            try:
                aside = set_checkpoint_aside(path)
            except StoreError as failure:
                return _Found(error=f"{error}; {failure}")
            notes.append(f"{error}; it is called {aside.name} from now on, and was passed over")


def _read(path: Path, *, named_by_user: bool) -> bytes:
    """Read the file; raises UsageError if it is no regular file, or cannot be read."""
    try:
        if path.is_dir():
            inside = latest_checkpoint(path) or latest_checkpoint(path / CHECKPOINTS)
            hint = f", e.g. {inside}" if inside else ""
            raise UsageError(f"{path} is no file; expected a checkpoint{hint}")
        with open_to_read(path, named_by_user=named_by_user) as file:
            return file.read()
    except FileNotFoundError:
        raise UsageError(
            f"{path} does not exist; expected a checkpoint, or --resume {RESUME_LATEST}"
        ) from None
    except StoreError as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        kind = Damaged if error.errno == errno.EIO else UsageError
        raise kind(f"cannot read {path}: {error.strerror or error}") from None


def _require_same_training(checkpoint: Checkpoint, job: TrainingJob) -> None:
    earlier = checkpoint.spec.with_files_of(job.spec).recomputed_as(job.spec)
    differences = [
        difference
        for difference in differing_fields(job.spec, earlier)
        if not difference.startswith("epochs: ")
    ]
    if differences:
        raise UsageError(
            f"{checkpoint.source} belongs to another training: {', '.join(differences)}; give the "
            "options that it was made with, or train anew without --resume"
        )
    begun = checkpoint.epoch + (checkpoint.window > 0)
    if job.spec.epochs < begun:
        raise UsageError(
            f"{checkpoint.source} is in epoch {begun}: got {job.spec.epochs} epochs; expected at "
            f"least {begun}"
        )


def _require_latest(checkpoint: Checkpoint, folder: Path) -> None:
    """Refuse a checkpoint older than others in the folder. Otherwise `latest_checkpoint` would
    return one of another course of this training, and the new ones would be deleted as the
    oldest."""
    newest = latest_checkpoint(folder)
    if newest is None or steps_in_name(newest) <= checkpoint.step:
        return
    if str(newest) == checkpoint.source:
        raise UsageError(
            f"{newest} holds step {checkpoint.step}: it was renamed by hand; expected the step in "
            "its name"
        )
    raise UsageError(
        f"{checkpoint.source} is of step {checkpoint.step}, and {newest} is later; expected the "
        f"latest (--resume {RESUME_LATEST}), or another folder to train in from an earlier one"
    )


def _model_misfits(saved: dict[str, Tensor], own: dict[str, Any]) -> Iterator[str]:
    for name in sorted({*saved, *own}):
        if name not in own:
            yield f"it has {name!r}, which the model has not"
        elif name not in saved:
            yield f"it lacks {name!r}"
        elif (got := _kind(saved[name])) != (expected := _kind(own[name])):
            yield f"its {name!r} is {got}; expected {expected}"


def _optimizer_misfits(saved: dict[str, Any], optimizer: torch.optim.Optimizer) -> Iterator[str]:
    """Differences between saved and expected state. With every optimizer that dpbench has, a
    parameter's state is numbers and tensors like it."""
    groups = [len(group["params"]) for group in optimizer.param_groups]
    shapes = [p.shape for group in optimizer.param_groups for p in group["params"]]
    try:
        if [len(group["params"]) for group in saved["param_groups"]] != groups:
            yield "its optimizer has other parameters"
        for number, state in saved["state"].items():
            for name, value in state.items():
                if isinstance(value, Tensor) and value.shape not in ((), shapes[number]):
                    yield f"the optimizer's {name!r} of parameter {number!r} is {_kind(value)}"
    except (AttributeError, IndexError, KeyError, TypeError):
        yield "its optimizer has no state of one"


def _kind(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


PIECE_BYTES = 64 * 1024**2
"""Size of one message; limits how much the backend copies at a time."""


LONGEST_WORDS_BYTES = 2**16
"""Longest path and error message."""


def memory_bytes() -> int:
    """Memory of this host: a checkpoint to resume from cannot be larger."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def broadcast_bytes(data: bytes | None, ranks: RankGroup, *, limit_bytes: int) -> bytes:
    """Send rank 0's `data` to every rank; a collective on the control group. Others pass None.

    Raises UsageError, on every rank, if it is longer than the limit of any of them.
    """
    if ranks.control is None:
        assert data is not None
        return data
    (length,), *_ = ranks.gather([0 if data is None else len(data)])
    if ranks.largest(not 0 <= length <= limit_bytes):  # refuses NaN; limits differ by host
        raise UsageError(f"rank 0 sends {length:,.0f} bytes; expected at most {limit_bytes:,}")
    received = bytearray(int(length)) if data is None else bytearray(data)
    if received:
        source = dist.get_global_rank(ranks.control, 0)
        for piece in torch.split(torch.frombuffer(received, dtype=torch.uint8), PIECE_BYTES):
            dist.broadcast(piece, src=source, group=ranks.control)
    return bytes(received) if data is None else data
