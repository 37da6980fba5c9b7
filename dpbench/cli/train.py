"""`dpbench train`: epochs over real data on any implementation, with evaluation and checkpoints."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import typer

from dpbench.cli import train_grammar as grammar
from dpbench.errors import UsageError

EXIT_STATUSES = """Exit status: 0 trained; 1 a rank failed; 2 usage; 130 interrupted. Started by
torchrun or dpbench launch, it joins their ranks."""


def train(
    context: typer.Context,
    arch: grammar.Arch = "mnist_cnn",
    input_shape: grammar.InputShape = None,
    data: grammar.Data = None,
    data_dir: grammar.DataDir = None,
    limit_train: grammar.LimitTrain = None,
    epochs: grammar.Epochs = None,
    max_steps: grammar.MaxSteps = None,
    batch_size: grammar.BatchSize = "64",
    seed: grammar.Seed = "0",
    config: grammar.Config = None,
    optimizer: grammar.Optimizer = "adadelta",
    lr: grammar.Lr = "1.0",
    gamma: grammar.Gamma = None,
    lr_scaling: grammar.LrScaling = "none",
    lr_warmup: grammar.LrWarmup = "0",
    accumulate: grammar.Accumulate = "1",
    last_window: grammar.LastWindow = "step",
    max_norm: grammar.MaxNorm = None,
    dtype: grammar.Dtype = "f32",
    compile: grammar.Compile = "none",
    channels_last: grammar.ChannelsLast = "no",
    checkpoint_activations: grammar.CheckpointActivations = "no",
    implementation: grammar.Implementation = "ddp",
    backend: grammar.Backend = None,
    sync_backend: grammar.SyncBackend = None,
    gpus: grammar.Gpus = None,
    threads: grammar.Threads = None,
    oversubscribe: grammar.Oversubscribe = False,
    sync_every: grammar.SyncEvery = None,
    bucket_cap_mb: grammar.BucketCapMb = None,
    balance: grammar.Balance = "equal",
    shares: grammar.Shares = None,
    timeout: grammar.Timeout = "120s",
    debug: grammar.Debug = False,
    prefetch: grammar.Prefetch = "0",
    evaluate: grammar.Evaluate = None,
    no_eval: grammar.NoEval = False,
    log_interval: grammar.LogInterval = "20",
    check_sync_every: grammar.CheckSyncEvery = None,
    checkpoint_every: grammar.CheckpointEvery = None,
    max_checkpoints: grammar.MaxCheckpoints = "10",
    resume: grammar.Resume = None,
    name: grammar.Name = None,
    runs_dir: grammar.RunsDir = Path("runs"),
    show_config: grammar.ShowConfig = False,
    dry_run: grammar.DryRun = False,
    memory: grammar.Memory = False,
    json_result: grammar.JsonResult = False,
    json_lines: grammar.JsonLines = False,
    quiet: grammar.Quiet = False,
    seq_len: grammar.SeqLen = None,
    local_rank: grammar.LocalRank = None,
) -> int:
    """Train a model: epochs, evaluation, checkpoints, and going on where it was interrupted.

    dpbench train --gpus 2 --backend shm
    """
    return _train(context, locals())


def _train(context: typer.Context, typed: dict[str, Any]) -> int:
    from dpbench.cli.train_asked import Asked

    if (length := typed.pop("seq_len")) is not None:
        raise UsageError(
            f"--seq-len {length}: how long a sequence is, the architecture says; expected "
            f"--arch gpt:context={length}, or what 'dpbench list' shows of another"
        )
    asked = Asked(typed=typed, given={option for option in typed if _is_given(context, option)})
    if "RANK" in os.environ:
        from dpbench.cli.train_joined import take_part

        return take_part(asked)
    request = asked.read()
    if typed["show_config"]:
        from dpbench.cli.train_config import shown

        typer.echo(shown(request.options), nl=False)
        return 0
    from dpbench.cli.train_execution import TrainOutput, execute

    return execute(request, TrainOutput.of(typed))


def _is_given(context: typer.Context, option: str) -> bool:
    source = context.get_parameter_source(option)
    return source is not None and source.name != "DEFAULT"
