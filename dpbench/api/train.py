"""`dpbench.train`: the command of the same name, called from Python, and what it returns."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dpbench.api import host_program
from dpbench.api.sweep import check_importable
from dpbench.errors import StoreError, UsageError
from dpbench.files import open_to_read
from dpbench.options.bridge import PYTHON, describe, keyed
from dpbench.options.train import TrainOptions
from dpbench.run.training.arguments import TrainArguments

if TYPE_CHECKING:
    import pandas as pd
    import torch

    from dpbench.training.events import Event, Finished
    from dpbench.training.run_folder import RunHeader


Which = Literal["last", "best"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """A run folder whose training is over."""

    folder: Path
    finished: Finished
    said: tuple[str, ...] = ()
    """Notes on the training for the user."""

    def __repr__(self) -> str:
        done, arch = self.finished, self.header.spec.workload.architecture
        accuracy = done.test_accuracy
        tested = "" if accuracy is None else f", test accuracy {100 * accuracy:.1f} %"
        return f"<Trained {str(self.folder)!r}: {arch}, {done.steps:,} steps{tested}>"

    @classmethod
    def open(cls, folder: str | PathLike[str]) -> Trained:
        """Read a run folder; nothing in it is executed.

        Raises StoreError if it is not a run folder, is damaged, or its training is not over.
        """
        from dpbench.training.events import Finished
        from dpbench.training.run_folder import RunFolder

        run = RunFolder.open(Path(folder))
        ended = [event for event in run.events() if isinstance(event, Finished)]
        if not ended:
            raise StoreError(
                f"{folder}: its training is not over; dpbench train --resume {folder} goes on"
            )
        return cls(folder=Path(folder), finished=ended[-1])

    @property
    def header(self) -> RunHeader:
        """The specification, the command and the environment of each start."""
        from dpbench.training.run_folder import RunFolder

        return RunFolder.open(self.folder).header

    @property
    def log(self) -> pd.DataFrame:
        """A row for each line of the log: loss, learning rate, samples per second, …"""
        from dpbench.training.events import StepLine

        return self._table(StepLine)

    @property
    def epochs(self) -> pd.DataFrame:
        """A row for each epoch: losses, test accuracy, seconds, checkpoint, …"""
        from dpbench.training.events import EpochLine

        return self._table(EpochLine)

    def load_model(self, which: Which = "last", *, arch: str | None = None) -> torch.nn.Module:
        """The trained module, on the CPU and in evaluation mode, from the last or best checkpoint.

        `arch` must be given if the run uses your own file or module, as loading it imports that
        code: a folder alone imports nothing.

        Raises UsageError, also for a checkpoint that is missing, damaged or does not fit.
        """
        from dpbench import architecture
        from dpbench.training import checkpoint

        if which not in ("last", "best"):
            raise UsageError(f"which: got {which!r}; expected 'last' or 'best'")
        name = self._trusted(arch)
        path = self._checkpoint(which)
        with open_to_read(path) as file:
            stored = checkpoint.from_bytes(file.read(), str(path))
        module = architecture.load(name).build_model()
        try:
            module.load_state_dict(stored.model)
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise UsageError(f"{path} does not fit architecture {name!r}: {reason}") from None
        return module.eval()

    def _trusted(self, arch: str | None) -> str:
        from dpbench import architecture

        named = self.header.spec.workload.architecture
        if arch is not None and arch != named:
            raise UsageError(f"arch: got {arch!r}, but the run uses {named!r}")
        if architecture.is_theirs(named) and arch is None:
            raise UsageError(
                f"{self.folder} uses {named!r}, whose code would be imported; if you trust it, "
                f"give arch={named!r}"
            )
        return named

    def _checkpoint(self, which: Which) -> Path:
        name = self.finished.last_checkpoint if which == "last" else self.finished.best_checkpoint
        path = None if name is None else self.folder / "checkpoints" / Path(name).name
        if path is None or not os.path.lexists(path):
            raise UsageError(f"{self.folder} has no {which} checkpoint")
        return path

    def _table(self, kind: type[Event]) -> pd.DataFrame:
        import pandas as pd

        from dpbench.training.events import current_events
        from dpbench.training.run_folder import RunFolder

        events = current_events(RunFolder.open(self.folder).events())
        rows = [asdict(event) for event in events if isinstance(event, kind)]
        return pd.DataFrame(rows, columns=[*kind.__dataclass_fields__])


def train(**options: Any) -> Trained:
    """Train a model for some epochs, with evaluation and checkpoints.

    The arguments are the options of `dpbench train`, with the same names, defaults and checks
    (`gpus`: 2 is a count, [0, 1] are ids). An argument that is left out, or None, leaves the option
    to the file of `config`, or to the run of `resume`. Everything is kept in a folder of its own in
    `runs_dir`. In a rank that a launcher started, the call trains as that rank and returns on every
    one.

    Raises UsageError for an impossible option, StoreError for a folder, DataError for data, and
    TrainingFailed if a rank fails. Ctrl-C is a KeyboardInterrupt that says how to go on.
    """
    progress = options.pop("progress", False)
    if not isinstance(progress, bool):
        raise UsageError(f"progress: expected True or False, got {progress!r}")
    given = keyed(TrainOptions, PYTHON, options)
    check_importable(given.get("arch"), "arch")
    asked = TrainArguments(given=given, embedded=True)
    with _alone(), host_program.listening(progress=progress) as said:
        return _run(asked, progress=progress, said=said)


describe(train, TrainOptions, flags={"progress": "Print on stderr what the command prints there."})


def _alone() -> AbstractContextManager[None]:
    """Keeps other calls out, except in a rank that a launcher started."""
    if "RANK" in os.environ:
        return nullcontext()
    return host_program.alone(call="dpbench.train")


def _run(asked: TrainArguments, *, progress: bool, said: list[str]) -> Trained:
    from dpbench.report.progress.training import TrainOutput

    output = TrainOutput(quiet=not progress, to_stderr=True)
    if "RANK" in os.environ:
        from dpbench.run.training.joined import Agreed, join

        try:
            joined = join(asked, output)
        except Agreed as agreed:
            raise agreed.error from None
        return Trained(folder=joined.folder, finished=joined.finished, said=tuple(said))
    from dpbench.run.training.running import train_here

    plan, finished = train_here(asked.read(), output)
    return Trained(folder=plan.place.path, finished=finished, said=tuple(said))
