"""`dpbench train`: epochs over real data on any implementation, with evaluation and checkpoints."""

from __future__ import annotations

import os
from typing import Any

from dpbench.cli.signature import command
from dpbench.options.reading import read_options
from dpbench.options.train import TrainOptions


@command(TrainOptions)
def train(typed: dict[str, Any]) -> int:
    """Train a model, with evaluation, checkpoints and resume.

    dpbench train --gpus 2 --backend shm

    Exit status: 0 trained; 1 a rank failed; 2 usage; 130 interrupted. Started by
    torchrun, dpbench launch, srun or mpirun, it joins their ranks.
    """
    from dpbench.launch.external_launchers import find_placement

    if "RANK" not in os.environ and (placed := find_placement(os.environ)):
        os.environ.update(placed.variables)
    options = read_options(TrainOptions, typed)
    if "RANK" in os.environ:
        from dpbench.run.training.launched import train_in_launch

        train_in_launch(options)
    else:
        from dpbench.run.training.running import train_here

        train_here(options)
    return 0
