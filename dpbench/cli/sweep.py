"""`dpbench sweep`: measure a grid of configurations and print a row for each."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import typer

from dpbench.cli.options import command
from dpbench.messages import say, to_stderr
from dpbench.run.sweep.options import SweepOptions
from dpbench.specs.settings import Texts

if TYPE_CHECKING:
    from dpbench.run.sweep.arguments import SweepArguments
    from dpbench.run.sweep.preparation import SweepPlan
    from dpbench.store import StoredSweep


@command(SweepOptions)
def sweep(context: typer.Context, typed: Texts) -> int:
    """Benchmark implementations, backends, group sizes and batch sizes.

    dpbench sweep --backends gloo,nccl --batch-sizes 32,64 --gpus 2

    Exit status: 0 all rows completed or skipped, at least one that you asked for
    completed; 1 some row failed, or only the baseline completed; 2 usage;
    6 wrong gradients in some row; 130 interrupted.
    """
    from dpbench.run.sweep.arguments import SweepArguments
    from dpbench.run.sweep.nodes import take_world

    world = take_world()
    asked = SweepArguments.of(context, typed, launched=world is not None)
    if world is None:
        return _sweep(asked, asked.options())
    if world.local_rank:
        world.wait()
        return 0
    with world.taking_part():
        return _sweep(asked, world.options(asked.options()))


def _sweep(asked: SweepArguments, typed: dict[str, Any]) -> int:
    parsed, nodes, notes = asked.parsed(typed)
    options = parsed.options
    if options.show_config:
        typer.echo(asked.as_config(), nl=False)
        return 0
    say(*asked.notes, *notes)
    if options.debug:
        say_more()
    from dpbench.launch.nodes.handshake import VARIABLE

    os.environ.pop(VARIABLE, None)  # it is nothing for ranks, which may run anybody's model
    if nodes is not None:
        # torch warns of addresses without a name.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if nodes is not None and nodes.node_rank:
        from dpbench.run.sweep.several_nodes import follow_sweep

        return follow_sweep(parsed, nodes)
    from dpbench.run.sweep.preparation import SweepRequest, measure_sweep, plan_sweep

    _require_columns(options)
    request = SweepRequest(parsed=parsed, command=typed.get("command") or sys.argv[1:])
    if options.dry_run:
        return _show_plan(plan_sweep(request, nodes), as_json=options.json_rows)
    return _report(measure_sweep(request, nodes), options)


def say_more() -> None:
    """Sets what torch.distributed and NCCL read when a group is made. Ranks get it with the
    environment, in which each trial records it."""
    from dpbench.rendezvous.process_group import DEBUG_VARIABLES

    os.environ.update(DEBUG_VARIABLES)
    words = ", ".join(f"{name}={value}" for name, value in DEBUG_VARIABLES.items())
    say(f"--debug: {words}; logs of trials that fail are kept")


def _require_columns(options: SweepOptions) -> None:
    """Raises UnknownName or UsageError for columns that the table at the end has not: now, as the
    sweep may take hours."""
    if options.columns is not None:
        from dpbench.report.tables import parse_columns
        from dpbench.report.torch_ddp_table import TORCH_DDP_LAYOUT

        if options.columns != TORCH_DDP_LAYOUT:
            parse_columns(options.columns)


def _report(stored: StoredSweep, options: SweepOptions) -> int:
    """Prints the table, writes tables and charts, and returns the exit status of the sweep."""
    from dpbench.cli.show_results import show_sweep
    from dpbench.run.sweep.preparation import exit_status

    show_sweep(
        stored,
        format="json" if options.json_rows else None,
        columns=options.columns,
        charts=options.charts,
    )
    say(f"records are in {stored.folder}")
    return exit_status(stored.records, stored.spec.implementations)


def _show_plan(plan: SweepPlan, *, as_json: bool) -> int:
    from dpbench.report.plan import sweep_answer
    from dpbench.report.progress.terminal import table_width

    found = sweep_answer(plan.rows, plan.summary, width=table_width())
    typer.echo(found.render(as_json=as_json), nl=False)
    if as_json:
        to_stderr(plan.summary)
    return 0
