"""`dpbench train`: epochs over real data on any implementation, with evaluation and checkpoints."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import typer

from dpbench.cli.options import command
from dpbench.errors import UsageError
from dpbench.run.option_layers import given_options
from dpbench.run.training.command import TrainCommand
from dpbench.specs.settings import Texts

if TYPE_CHECKING:
    from dpbench.run.training.arguments import TrainArguments


@command(TrainCommand)
def train(context: typer.Context, typed: Texts) -> int:
    """Train a model, with evaluation, checkpoints and resume.

    dpbench train --gpus 2 --backend shm

    Exit status: 0 trained; 1 a rank failed; 2 usage; 130 interrupted. Started by
    torchrun or dpbench launch, it joins their ranks.
    """
    from dpbench.run.training.arguments import TrainArguments

    if (length := typed["seq_len"]) is not None:
        raise UsageError(
            f"--seq-len {length}: how long a sequence is, the architecture says; expected "
            f"--arch gpt:context={length}, or what 'dpbench list' shows of another"
        )
    asked = TrainArguments(typed=typed, given=given_options(context))
    if "RANK" in os.environ:
        return _take_part(asked)
    request = asked.read()
    if typed["show_config"]:
        typer.echo(request.as_config(), nl=False)
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
    """Trains as one rank, and returns the exit status. Only rank 0 says anything, but for errors
    that are of another rank alone."""
    from dpbench.report.progress.training import TrainOutput
    from dpbench.run.training.joined import join
    from dpbench.run.training.orders import Agreed

    output = TrainOutput.of(asked.typed)
    try:
        joined = join(asked, output)
    except Agreed as agreed:
        return agreed.error.exit_status
    if joined.plan is not None:
        output.conclude(joined.finished, joined.plan.spec, joined.folder)
    return 0
