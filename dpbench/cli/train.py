"""`dpbench train`: epochs over real data on any implementation, with evaluation and checkpoints."""

from __future__ import annotations

import os
from typing import Any

from dpbench.options.bridge import command
from dpbench.options.train import TrainOptions


@command(TrainOptions)
def train(typed: dict[str, Any]) -> int:
    """Train a model, with evaluation, checkpoints and resume.

    dpbench train --gpus 2 --backend shm

    Exit status: 0 trained; 1 a rank failed; 2 usage; 130 interrupted. Started by
    torchrun, dpbench launch, srun or mpirun, it joins their ranks.
    """
    from dpbench.launch.placement import find_placement
    from dpbench.run.training.arguments import TrainRequest

    if "RANK" not in os.environ and (placed := find_placement(os.environ)) and placed.size:
        os.environ.update(placed.variables)
    request = TrainRequest.read(typed)
    from dpbench.report.progress.training import TrainOutput

    output = TrainOutput.of(typed)
    if "RANK" in os.environ:
        from dpbench.run.training.joined import join

        join(request, output)
        return 0
    from dpbench.run.training.running import train_here

    if (trained := train_here(request, output)) is not None:
        plan, finished = trained
        output.conclude(finished, plan.spec, plan.place.path)
    return 0
