"""The checkpoints of a run: a folder with the latest ones and the best.

Training waits while a checkpoint is written.
"""

from __future__ import annotations

from pathlib import Path

from dpbench.errors import StoreError
from dpbench.files import folder_inside, remove_leftovers, write_named, write_whole
from dpbench.specs.training import RESUME_LATEST
from dpbench.training.checkpoint import Checkpoint, to_bytes

BEST = "best.pt"


def steps_in_name(path: Path) -> int:
    """Number of optimizer steps in the name of a checkpoint."""
    return int(path.stem.removeprefix("step-"))


def by_steps(folder: Path) -> list[Path]:
    """The checkpoints in a folder by their number of optimizer steps; creates nothing."""
    return sorted(folder.glob("step-[0-9]*.pt"), key=steps_in_name)


def latest_checkpoint(folder: Path) -> Path | None:
    """The checkpoint with the most optimizer steps; None if there is none."""
    return next(reversed(by_steps(folder)), None)


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
        path = self.folder / f"step-{checkpoint.progress.step:08}.pt"
        # The best first: if it were lost, this step would never be the best again.
        targets = [path.with_name(BEST), path] if best else [path]
        try:
            for target in targets:
                write_whole(target, lambda file: file.write(data))
            others = [other for other in by_steps(self.folder) if other != path]
            for old in others[: max(0, len(others) + 1 - self._keep)]:
                old.unlink(missing_ok=True)
            if self._also is not None:
                target = self._also
                write_named(target, lambda file: file.write(data))
        except OSError as error:
            raise StoreError(
                f"cannot write {target}: {error.strerror or error}; the checkpoints in "
                f"{self.folder} are whole, and --resume {RESUME_LATEST} goes on from the latest"
            ) from error
        return path
