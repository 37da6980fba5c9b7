"""`dpbench.train`: the command of the same name, called from Python, and what it returns."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import torch

from dpbench import architecture
from dpbench.api.calls import python_call, takes_options
from dpbench.errors import FileError, UsageError
from dpbench.files import read_bytes
from dpbench.options.train import TrainOptions
from dpbench.run.training import ranks
from dpbench.training import checkpoint
from dpbench.training.events import EndLine
from dpbench.training.run_folder import RunManifest, follow_log, read_manifest


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """A run folder whose training is over."""

    folder: Path
    finished: EndLine

    @classmethod
    def open(cls, folder: str | PathLike[str]) -> Trained:
        """Read a run folder; nothing in it is executed.

        Raises FileError if it is not a run folder, is damaged, or its training is not over.
        """
        read_manifest(Path(folder))  # raises unless it is a run folder
        ended = [e for e in follow_log(Path(folder)).new() if isinstance(e, EndLine)]
        if not ended:
            raise FileError(
                f"{folder}: training has not finished; dpbench train --resume {folder} continues it"
            )
        return cls(folder=Path(folder), finished=ended[-1])

    @property
    def manifest(self) -> RunManifest:
        """The specification, the command and the environment of each start."""
        return read_manifest(self.folder)

    def load_model(
        self, which: Literal["last", "best"] = "last", *, arch: str | None = None
    ) -> torch.nn.Module:
        """The trained module, on the CPU and in evaluation mode, from the last or best checkpoint.

        `arch` must be given if the run uses your own file or module, as loading it imports that
        code: a folder alone imports nothing.

        Raises UsageError, also for a checkpoint that is missing, damaged or does not fit.
        """
        if which not in ("last", "best"):
            raise UsageError(f"which: got {which!r}; expected 'last' or 'best'")
        name = self.manifest.spec.workload.architecture
        if arch is not None and arch != name:
            raise UsageError(f"arch: got {arch!r}, but the run uses {name!r}")
        if architecture.is_user_code(name) and arch is None:
            raise UsageError(
                f"{self.folder} uses {name!r}, whose code would be imported; if you trust it, "
                f"give arch={name!r}"
            )
        done = self.finished
        file = done.last_checkpoint if which == "last" else done.best_checkpoint
        path = self.folder / "checkpoints" / Path(file or "none").name
        if not path.exists():
            raise UsageError(f"{self.folder} has no {which} checkpoint")
        stored = checkpoint.from_bytes(read_bytes(path), str(path))
        with torch.random.fork_rng(devices=[]):  # the caller's random numbers go on as they were
            module = architecture.load_architecture(name).build_model()
        try:
            module.load_state_dict(stored.model)
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise UsageError(f"{path} does not fit architecture {name!r}: {reason}") from None
        return module.eval()


@takes_options(TrainOptions)
def train(arch: str | None = None, *, progress: bool = True, **options: Any) -> Trained:
    """Train a model for some epochs, with evaluation and checkpoints, like `dpbench train`.

        >>> trained = dpbench.train("mlp", epochs=5, gpus=2)
        >>> trained.finished.test_accuracy

    Every option that affects training is an argument (`gpus`: 2 is a count, [0, 1] are ids).
    Omit an argument, or pass None, for its default, or its value in the file `config`. The run
    folder is created in `runs_dir`. Under a launcher, the call trains as one of its ranks and
    returns on every rank. `progress` prints on stderr.

    Returns:
        The run folder, the end of its log and its models.

    Raises:
        UsageError: An argument is invalid, or the dataset cannot be used.
        FileError: A folder cannot be used.
        TrainingFailed: A rank failed.
        KeyboardInterrupt: After Ctrl-C; the message says how to resume.
    """
    given = {"arch": arch, **options}
    with python_call("dpbench.train", TrainOptions, given, progress=progress) as training:
        folder, finished = ranks.train(training, sys.stderr if progress else None)
    return Trained(folder=folder, finished=finished)
