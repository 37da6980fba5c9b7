"""`dpbench.train`: the command of the same name, called from Python."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from dpbench.api.calls import measuring, python_call, takes_options
from dpbench.options.reading import read_options
from dpbench.options.train import TrainOptions

if TYPE_CHECKING:
    from dpbench.api.trained import Trained


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
    launched = "RANK" in os.environ
    with python_call(progress=progress), nullcontext() if launched else measuring("dpbench.train"):
        from dpbench.api.trained import Trained
        from dpbench.report.progress.training import TrainingProgress
        from dpbench.run.training.launched import train_in_launch
        from dpbench.run.training.running import train_here

        training = read_options(TrainOptions, {"arch": arch, **options}, "dpbench.train")
        shown = TrainingProgress(sys.stderr if progress else None)
        folder, finished = (train_in_launch if launched else train_here)(training, shown)
    return Trained(folder=folder, finished=finished)
