"""Output of the ranks to the run folder: only rank 0 writes log and checkpoints.

While rank 0 waits for a disk the others wait for it, however long that takes.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from dpbench.measure.rank_group import RankGroup
from dpbench.training.checkpoint import BEST, Checkpoint, CheckpointFolder, latest
from dpbench.training.events import Event
from dpbench.training.job import TrainingJob
from dpbench.training.run_folder import RunFolder


class Writer:
    """A context; leaving it returns when all checkpoints are on disk, also after an error."""

    def __init__(self, job: TrainingJob, rank: int, ranks: RankGroup) -> None:
        """Raises StoreError if the run folder cannot be used."""
        self.last_checkpoint: str | None = None
        self.best_checkpoint: str | None = None
        """Name of a file in the run folder, also from before a resumption; only rank 0 knows it."""
        self._ranks = ranks
        self._folder: RunFolder | None = None
        self._checkpoints: CheckpointFolder | None = None
        self._open = ExitStack()
        if rank == 0:
            self._folder = RunFolder.open(job.folder)
            also = None if job.run.checkpoint is None else Path(job.run.checkpoint)
            self._checkpoints = CheckpointFolder(
                self._folder.checkpoints, job.run.max_checkpoints, also
            )
            self._open.callback(self._folder.close)
            self._open.enter_context(self._checkpoints)
            newest = latest(self._folder.checkpoints)
            self.last_checkpoint = None if newest is None else newest.name
            has_best = os.path.lexists(self._folder.checkpoints / BEST)
            self.best_checkpoint = BEST if has_best else None

    def say(self, event: Event) -> None:
        """Add an event to the log."""
        if self._folder is not None:
            self._folder.append(event)

    def save(self, checkpoint: Checkpoint | None, *, best: bool) -> str | None:
        """Save a checkpoint; returns the file's name when the tensors may change again. A
        collective, in which all ranks except 0 pass None. Raises StoreError if an earlier one could
        not be written."""

        def save() -> None:
            assert self._checkpoints is not None
            assert checkpoint is not None
            self.last_checkpoint = self._checkpoints.save(checkpoint, best=best).name

        self._ranks.on_first(save)
        if best:
            self.best_checkpoint = BEST
        return self.last_checkpoint

    def finish_checkpoints(self) -> None:
        """Return when all checkpoints are on disk, and no more may be saved; a collective. Raises
        StoreError if the last one could not be written."""

        def finish() -> None:
            assert self._checkpoints is not None
            self._checkpoints.close()

        self._ranks.on_first(finish)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._open.__exit__(kind, error, traceback)
