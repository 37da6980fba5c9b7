"""`dpbench sweep`: measure a grid of configurations and print a row for each."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dpbench.cli.options import Texts, command
from dpbench.cli.sweep_options import SweepOptions
from dpbench.errors import UsageError

if TYPE_CHECKING:
    from dpbench.cli.sweep_file import Asked


@command(SweepOptions)
def sweep(context: typer.Context, typed: Texts) -> int:
    """Measure every combination of implementation, backend, group size, batch size and settings.

    dpbench sweep --backends gloo,nccl --batch-sizes 32,64 --gpus 2
    """
    from dpbench.cli.joined_world import take_world
    from dpbench.cli.sweep_file import Asked

    asked = Asked.of(context, typed)
    world = take_world()
    if world is None:
        return _sweep(asked, asked.options())
    if world.local_rank:
        world.wait()
        return 0
    with world.taking_part():
        return _sweep(asked, world.options(asked.options()))


def _sweep(asked: Asked, typed: dict[str, Any]) -> int:
    from dpbench.cli.messages import say

    parsed, nodes, notes = asked.parsed(typed)
    options = parsed.options
    if options.show_config:
        typer.echo(asked.shown(), nl=False)
        return 0
    for note in (*asked.notes, *notes):
        say(note)
    from dpbench.launch.nodes.token import VARIABLE

    os.environ.pop(VARIABLE, None)  # it is nothing for ranks, which may run anybody's model
    if nodes is not None:
        # torch warns of addresses without a name.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if nodes is not None and nodes.request.node_rank:
        from dpbench.cli.sweep_follow import follow_sweep

        return follow_sweep(parsed, nodes)
    from dpbench.cli.sweep_preparation import SweepRequest
    from dpbench.cli.sweep_run import execute

    request = SweepRequest(parsed=parsed, command=typed.get("command") or sys.argv[1:])
    if nodes is None:
        return execute(request)
    from dpbench.cli.sweep_lead import lead_sweep

    return lead_sweep(request, nodes)


def make_importable(*named: str | None) -> None:
    """Lets package.module:name be of a module of the working directory, as python -m would."""
    from dpbench.architecture import is_theirs

    with suppress(UsageError):  # of a name that is none; whoever reads it says so
        theirs = any(name is not None and is_theirs(name) for name in named)
        if theirs and str(Path.cwd()) not in sys.path:
            sys.path.append(str(Path.cwd()))
