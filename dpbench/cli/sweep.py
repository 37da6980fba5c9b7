"""`dpbench sweep`: measure a grid of configurations and print a row for each."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dpbench.cli import axes_grammar, nodes_grammar
from dpbench.cli import sweep_grammar as grammar
from dpbench.errors import UsageError

if TYPE_CHECKING:
    from dpbench.cli.nodes import Nodes
    from dpbench.cli.sweep_file import Asked
    from dpbench.cli.sweep_options import ParsedOptions


def sweep(
    context: typer.Context,
    config: grammar.Config = None,
    preset: grammar.Preset = None,
    implementations: grammar.Implementations = "dp,ddp",
    backends: grammar.Backends = None,
    sync_backend: grammar.SyncBackend = None,
    batch_sizes: grammar.BatchSizes = "32,64,128",
    group_sizes: grammar.GroupSizes = None,
    scaling: grammar.Scaling = "weak",
    arch: grammar.Arch = "mnist_cnn",
    input_shape: grammar.InputShape = None,
    step: grammar.Step = None,
    data: grammar.Data = None,
    data_dir: grammar.DataDir = None,
    warmup: grammar.Warmup = "10",
    steps: grammar.Steps = None,
    repetitions: grammar.Repetitions = None,
    precision: grammar.Precision = None,
    budget: grammar.Budget = None,
    accumulate: axes_grammar.Accumulate = None,
    dtypes: axes_grammar.Dtypes = None,
    compile: axes_grammar.Compile = None,
    channels_last: axes_grammar.ChannelsLast = None,
    checkpoint_activations: axes_grammar.CheckpointActivations = None,
    sync_every: axes_grammar.SyncEvery = None,
    bucket_cap_mb: axes_grammar.BucketCapMb = None,
    comm_hook: axes_grammar.CommHook = None,
    prefetch: axes_grammar.Prefetch = None,
    data_workers: axes_grammar.DataWorkers = None,
    exclude: axes_grammar.Exclude = None,
    include: axes_grammar.Include = None,
    optimizer: axes_grammar.Optimizer = None,
    lr: grammar.Lr = "0.01",
    lr_scaling: grammar.LrScaling = "none",
    seed: grammar.Seed = "0",
    target_loss: grammar.TargetLoss = None,
    phases: grammar.Phases = "5",
    noise_scale: grammar.NoiseScale = "0",
    trace: grammar.Trace = "0",
    gradient_steps: grammar.GradientSteps = "10",
    time_limit: grammar.TimeLimit = "5m",
    stop_after_failure: grammar.StopAfterFailure = False,
    gpus: grammar.Gpus = None,
    threads: grammar.Threads = None,
    oversubscribe: grammar.Oversubscribe = False,
    order_seed: grammar.OrderSeed = None,
    nnodes: nodes_grammar.Nnodes = None,
    node_rank: nodes_grammar.NodeRank = None,
    rdzv_endpoint: nodes_grammar.RdzvEndpoint = None,
    rdzv_id: nodes_grammar.RdzvId = None,
    token_file: nodes_grammar.TokenFile = None,
    local_addr: nodes_grammar.LocalAddr = None,
    interface: nodes_grammar.Interface = None,
    join_timeout: nodes_grammar.JoinTimeout = None,
    lost_after: nodes_grammar.LostAfter = None,
    placement: nodes_grammar.Placement = None,
    name: grammar.Name = None,
    results_dir: grammar.ResultsDir = Path("results"),
    resume: grammar.Resume = False,
    retry: grammar.Retry = None,
    show_config: grammar.ShowConfig = False,
    dry_run: grammar.DryRun = False,
    charts: grammar.Charts = True,
    json_rows: grammar.JsonRows = False,
    quiet: grammar.Quiet = False,
    synthetic: grammar.Synthetic = False,
) -> int:
    """Measure every combination of implementation, backend, group size, batch size and settings.

    dpbench sweep --backends gloo,nccl --batch-sizes 32,64 --gpus 2
    """
    typed = locals()
    from dpbench.cli.joined_world import take_world
    from dpbench.cli.sweep_file import Asked

    asked = Asked.of(typed.pop("context"), typed)
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

    with asked.blaming(parse_typed):
        options, nodes, notes = parse_typed(typed)
    if typed["show_config"]:
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
        from dpbench.cli.sweep_follow import Following, follow_sweep

        given = {**_fields_of(Following, typed), "options": options, "nodes": nodes}
        return follow_sweep(Following(**given))
    from dpbench.cli.sweep_run import Job, execute

    job = Job(**{**_fields_of(Job, typed), "options": options})
    if nodes is None:
        return execute(job)
    from dpbench.cli.sweep_lead import lead_sweep

    return lead_sweep(job, nodes)


def parse_typed(typed: dict[str, Any]) -> tuple[ParsedOptions, Nodes | None, list[str]]:
    """Checks the options by the names of the command's parameters; raises UsageError."""
    from dpbench.cli.nodes import NodeOptions, parse_nodes
    from dpbench.cli.sweep_options import SweepOptions, parse

    make_importable(typed["arch"], typed["step"], typed["data"])
    notes: list[str] = []
    options = parse(SweepOptions(**_fields_of(SweepOptions, typed)))
    nodes = parse_nodes(NodeOptions(**_fields_of(NodeOptions, typed)), notes)
    return options, nodes, notes


def _fields_of(kind: type[Any], typed: dict[str, Any]) -> dict[str, Any]:
    """The typed values that `kind` has a field for, under the same name."""
    return {field.name: typed[field.name] for field in fields(kind) if field.name in typed}


def make_importable(*named: str | None) -> None:
    """Lets package.module:name be of a module of the working directory, as python -m would."""
    from dpbench.architecture import is_theirs

    with suppress(UsageError):  # of a name that is none; whoever reads it says so
        theirs = any(name is not None and is_theirs(name) for name in named)
        if theirs and str(Path.cwd()) not in sys.path:
            sys.path.append(str(Path.cwd()))
