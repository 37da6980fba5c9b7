"""The checkpoints of a run: a folder with the latest ones and the best.

Training waits while a checkpoint is written.
"""

from __future__ import annotations

import re
from pathlib import Path

from dpbench.errors import StoreError
from dpbench.files import folder_inside, remove_leftovers, write_named, write_whole
from dpbench.specs.training import RESUME_LATEST
from dpbench.training.checkpoint import Checkpoint, to_bytes

BEST = "best.pt"
_STEP = re.compile(r"step-(\d+)\.pt")


def latest_checkpoint(folder: Path) -> Path | None:
    """The checkpoint with the most optimizer steps; None if there is none. Creates nothing."""
    return max(_of_steps(folder), key=steps_in_name, default=None)


def steps_in_name(path: Path) -> int:
    """Number of optimizer steps in the name of a checkpoint."""
    return int(path.stem.removeprefix("step-"))


class CheckpointFolder:
    """Keeps the `keep` latest checkpoints and the best one; only one process at a time may use it.

    A process that is killed leaves whole checkpoints.
    """

    def __init__(self, folder: Path, keep: int, also: Path | None = None) -> None:
        """Make the folder, and remove half-written files of a writer that died.

        Each checkpoint is also written to the user's file `also`. Raises StoreError if the folder
        cannot be made.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            folder_inside(folder.parent, folder.name)
            remove_leftovers(folder)
        except OSError as error:
            raise StoreError(f"cannot keep checkpoints in {folder}: {error.strerror}") from None
        self.folder = folder
        self._keep = keep
        self._also = also

    def save(self, checkpoint: Checkpoint, *, best: bool) -> Path:
        """Write the checkpoint; returns its file. Raises StoreError if it cannot be written."""
        data = to_bytes(checkpoint)
        path = self.folder / f"step-{checkpoint.step:08}.pt"
        # The best first: if it were lost, this step would never be the best again.
        targets = [path.with_name(BEST), path] if best else [path]
        try:
            for target in targets:
                write_whole(target, lambda file: file.write(data))
        except OSError as error:
            raise StoreError(
                f"cannot write {target}: {error.strerror or error}; the checkpoints before it are "
                f"whole, and --resume {RESUME_LATEST} goes on from the latest of them"
            ) from error
        others = sorted((p for p in _of_steps(self.folder) if p != path), key=steps_in_name)
        for old in others[: max(0, len(others) + 1 - self._keep)]:
            old.unlink(missing_ok=True)
        if self._also is not None:
            try:
                write_named(self._also, lambda file: file.write(data))
            except OSError as error:
                raise StoreError(
                    f"cannot write {self._also}: {error.strerror or error}; the same checkpoint "
                    f"is whole in {path}"
                ) from error
        return path


def _of_steps(folder: Path) -> list[Path]:
    return [path for path in folder.glob("step-*.pt") if _STEP.fullmatch(path.name)]
