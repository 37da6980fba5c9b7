"""The checkpoints of a run: a folder with the latest ones and the best, written by a thread."""

from __future__ import annotations

import re
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dpbench.errors import StoreError
from dpbench.files import (
    folder_inside,
    open_to_read,
    place,
    place_also,
    remove_leftovers,
    temporary_beside,
    write_named,
)
from dpbench.specs.training import RESUME_LATEST
from dpbench.training import archive
from dpbench.training.archive import HostBuffers
from dpbench.training.checkpoint import Checkpoint, to_plain

BEST = "best.pt"
_STEP = re.compile(r"step-(\d+)\.pt")


def latest_checkpoint(folder: Path) -> Path | None:
    """The checkpoint with the most optimizer steps; None if there is none. Creates nothing."""
    return max(_of_steps(folder), key=steps_in_name, default=None)


def steps_in_name(path: Path) -> int:
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
        self._copy = HostBuffers()
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
                f"whole, and --resume {RESUME_LATEST} goes on from the latest of them"
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
        others = sorted((p for p in _of_steps(self.folder) if p != newest), key=steps_in_name)
        for path in others[: max(0, len(others) + 1 - self._keep)]:
            path.unlink(missing_ok=True)


def _of_steps(folder: Path) -> list[Path]:
    return [path for path in folder.glob("step-*.pt") if _STEP.fullmatch(path.name)]
