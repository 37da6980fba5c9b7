"""Checkpoints: all that a training needs to go on as if never interrupted, and a run's set of them.

Its file is a torch.save of plain values, which torch.load(weights_only=True) reads.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torch import Tensor

from dpbench.codec import decode, encode
from dpbench.errors import StoreError, UsageError
from dpbench.files import (
    flush_folder,
    folder_inside,
    open_to_read,
    place,
    place_also,
    remove_leftovers,
    temporary_beside,
    write_named,
)
from dpbench.specs.training import TrainingSpec
from dpbench.training import archive
from dpbench.training.archive import HostCopy
from dpbench.traits import IMPLEMENTATIONS

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
    return archive.dumps(HostCopy().take(to_plain(checkpoint)))


def from_bytes(data: bytes, where: str) -> Checkpoint:
    """The checkpoint whose file, called `where`, has this content.

    Raises UsageError in one line, with the file and the reason, for anything that is not a whole
    checkpoint of this format. Nothing in `data` is executed.
    """
    content = archive.loads(data, where)
    _require_ours(content, where)
    spec = _spec(content.get("spec"), where)
    for name, (expected, fits) in _EXPECTED.items():
        if name not in content or not fits(content[name]):
            got = type(content[name]).__name__ if name in content else "nothing"
            raise UsageError(f"{where}: its {name!r} is {got}; expected {expected}")
    _require_counts(content, spec, where)
    stored = {name: content[name] for name in _STORED}
    return Checkpoint(spec=spec, shares=tuple(content["shares"]), source=where, **stored)


def _require_ours(content: Any, where: str) -> None:
    if not isinstance(content, dict) or content.get("kind") != MAGIC:
        raise UsageError(
            f"{where}: this is no checkpoint of dpbench train, but {_describe(content)}"
        )
    version = content.get("format_version")
    if type(version) is not int:
        raise UsageError(f"{where}: it has no format version")
    if version > FORMAT_VERSION:
        raise UsageError(
            f"{where}: it has format version {version}, and this dpbench reads up to "
            f"{FORMAT_VERSION}; upgrade dpbench to read it"
        )


def _spec(value: Any, where: str) -> TrainingSpec:
    try:
        as_json = json.loads(json.dumps(value))  # has no tensors, and only string keys
        spec = decode(TrainingSpec, as_json)
    except (StoreError, TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{where}: {archive.one_line(str(error))}") from None
    if spec.implementation not in IMPLEMENTATIONS:
        name = archive.one_line(spec.implementation)
        raise UsageError(f"{where}: unknown implementation {name!r}")
    return spec


def _describe(content: Any) -> str:
    if not isinstance(content, dict):
        return f"a {type(content).__name__}"
    if content and all(isinstance(value, Tensor) for value in content.values()):
        return f"a bare state dict of {len(content)} tensors"
    return "a dict of something else"


def _require_counts(content: dict[str, Any], spec: TrainingSpec, where: str) -> None:
    processes = spec.process_count
    local = IMPLEMENTATIONS[spec.implementation].averages_parameters
    for name, allowed in (
        ("optimizers", {processes if local else 1}),
        ("random_states", {processes}),
        ("shares", {0, processes}),
    ):
        if len(content[name]) not in allowed:
            raise UsageError(
                f"{where}: it holds {len(content[name])} {name} of a training of {processes} "
                f"processes; expected {' or '.join(map(str, sorted(allowed)))}"
            )


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_plain_dict(value: Any) -> bool:
    return type(value) is dict and all(type(key) is str for key in value)


def _is_state_dict(value: Any) -> bool:
    return _is_plain_dict(value) and all(isinstance(part, Tensor) for part in value.values())


def _are_dicts(value: Any) -> bool:
    return type(value) is list and all(map(_is_plain_dict, value))


def _are_shares(value: Any) -> bool:
    return type(value) is list and all(
        type(share) is float and 0 < share < math.inf for share in value
    )


_EXPECTED: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "epoch": ("a whole number of at least 0", _is_count),
    "window": ("a whole number of at least 0", _is_count),
    "step": ("a whole number of at least 0", _is_count),
    "model": ("tensors by name", _is_state_dict),
    "optimizers": ("a list of state dicts", _are_dicts),
    "scaler": ("a state dict or None", lambda value: value is None or _is_plain_dict(value)),
    "random_states": ("a list of states", _are_dicts),
    "shares": ("a list of numbers above 0", _are_shares),
    "samples_sha256": ("a hash", lambda value: type(value) is str),
    "best_metric": ("a number or None", lambda value: value is None or type(value) is float),
    "progress": ("numbers by name", _is_plain_dict),
}
"""Type of each part, in words and as a test."""


BEST = "best.pt"
SET_ASIDE = ".damaged"
"""Suffix of a damaged checkpoint's name, once a training has continued from another."""
_STEP = re.compile(r"step-(\d+)\.pt")


def latest(folder: Path) -> Path | None:
    """The checkpoint with the most optimizer steps; None if there is none. Creates nothing."""
    return max(_of_steps(folder), key=number_of, default=None)


def set_aside(path: Path) -> Path:
    """Rename a damaged checkpoint, so that the one before it is the latest. Raises StoreError."""
    aside = path.with_name(path.name + SET_ASIDE)
    try:
        path.replace(aside)
        flush_folder(path.parent)
    except OSError as error:
        raise StoreError(f"cannot rename {path}, which is damaged: {error.strerror}") from None
    return aside


def number_of(path: Path) -> int:
    """Number of optimizer steps in the name of a checkpoint."""
    found = _STEP.fullmatch(path.name)
    assert found is not None
    return int(found[1])


class CheckpointFolder:
    """Keeps the `keep` latest checkpoints and the best one; only one process at a time may use it.

    Use it as a context manager, or close it: only then is the last checkpoint known to be on disk.
    """

    def __init__(self, folder: Path, keep: int, also: Path | None = None) -> None:
        """Make the folder, and remove half-written files of a writer that died.

        Each checkpoint is also written to the user's file `also`: as a copy, since that may be on
        another disk, and may be a link or a pipe.

        Raises ValueError if none is to be kept, StoreError if the folder cannot be made.
        """
        if keep < 1:
            raise ValueError(f"checkpoints to keep: got {keep}, expected at least 1")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            folder_inside(folder.parent, folder.name)
            remove_leftovers(folder)
        except OSError as error:
            raise StoreError(f"cannot keep checkpoints in {folder}: {error.strerror}") from None
        self.folder = folder
        self._keep = keep
        self._also = also
        self._copy = HostCopy()
        self._writer = ThreadPoolExecutor(1, "checkpoint-writer")
        self._writing: Future[None] | None = None

    def save(self, checkpoint: Checkpoint, *, best: bool) -> Path:
        """Copy the checkpoint to host memory and return the file that a thread then writes.

        After that the tensors of `checkpoint` may be changed. This waits for the previous
        checkpoint if it is still being written, and raises StoreError if that failed.
        """
        self.wait()
        content = self._copy.take(to_plain(checkpoint))
        path = self.folder / f"step-{checkpoint.step:08}.pt"
        self._writing = self._writer.submit(self._write, content, path, best)
        return path

    def close(self) -> None:
        """Return when all is on disk; raises StoreError if the last one could not be written."""
        try:
            self.wait()
        finally:
            self._writer.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: object, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Exception as failure:
            if error is None:
                raise
            error.add_note(str(failure))  # the error that ended the training comes first

    def wait(self) -> None:
        """Return when the last checkpoint is on disk; raises StoreError if it could not be
        written."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _write(self, content: dict[str, Any], path: Path, best: bool) -> None:
        """Write a checkpoint, in the thread."""
        try:
            with temporary_beside(path) as file:
                archive.dump(content, file)
                if best:  # written first: if it were lost, this step would never be the best again
                    place_also(file, path.with_name(BEST))
                place(file, path)
            self._remove_oldest(path)
            self._write_also(path)
        except OSError as error:
            raise StoreError(
                f"cannot write {path}: {error.strerror or error}; the checkpoints before it are "
                "whole, and --resume auto goes on from the latest of them"
            ) from error

    def _write_also(self, path: Path) -> None:
        if self._also is None:
            return
        try:
            with open_to_read(path) as whole:
                write_named(self._also, lambda file: shutil.copyfileobj(whole, file))
        except OSError as error:
            raise StoreError(
                f"cannot write {self._also}: {error.strerror or error}; the same checkpoint is "
                f"whole in {path}"
            ) from error

    def _remove_oldest(self, newest: Path) -> None:
        others = sorted((p for p in _of_steps(self.folder) if p != newest), key=number_of)
        for path in others[: max(0, len(others) + 1 - self._keep)]:
            path.unlink(missing_ok=True)


def _of_steps(folder: Path) -> list[Path]:
    return [path for path in folder.glob("step-*.pt") if _STEP.fullmatch(path.name)]
