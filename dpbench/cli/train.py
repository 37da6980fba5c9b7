"""`dpbench train`: epochs over real data on any implementation, with evaluation and checkpoints."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import typer

from dpbench.options.bridge import as_config, command
from dpbench.options.train import TrainOptions

if TYPE_CHECKING:
    from dpbench.run.training.arguments import TrainArguments


@command(TrainOptions)
def train(typed: dict[str, Any]) -> int:
    """Train a model, with evaluation, checkpoints and resume.

    dpbench train --gpus 2 --backend shm

    Exit status: 0 trained; 1 a rank failed; 2 usage; 130 interrupted. Started by
    torchrun, dpbench launch, srun or mpirun, it joins their ranks.
    """
    from dpbench.launch import where
    from dpbench.run.training.arguments import TrainArguments

    asked = TrainArguments(given=typed)
    if "RANK" not in os.environ and (placed := where.find(os.environ)) and placed.size:
        os.environ.update(where.rank_variables(placed))
    if "RANK" in os.environ:
        return _take_part(asked)
    request = asked.read()
    if request.options.show_config:
        typer.echo(as_config(request.options), nl=False)
        return 0
    from dpbench.report.progress.training import TrainOutput
    from dpbench.run.training.running import introduce_plan, train_here

    output = TrainOutput.of(typed)
    if output.dry_run:
        introduce_plan(request, output)
        return 0
    plan, finished = train_here(request, output)
    output.conclude(finished, plan.spec, plan.place.path)
    return 0


def _take_part(asked: TrainArguments) -> int:
    """Trains as one rank, and returns the exit status. Only rank 0 prints anything, except for
    errors of another rank alone."""
    from dpbench.report.progress.training import TrainOutput
    from dpbench.run.training.joined import Agreed, join

    output = TrainOutput.of(asked.given)
    try:
        joined = join(asked, output)
    except Agreed as agreed:
        return agreed.error.exit_status
    if joined.plan is not None:
        output.conclude(joined.finished, joined.plan.spec, joined.folder)
    return 0
