"""`dpbench sweep`: measure a grid of configurations and print a row for each."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from dpbench.cli import sweep_grammar as grammar


def sweep(
    implementations: grammar.Implementations = "dp,ddp",
    backends: grammar.Backends = None,
    sync_backend: grammar.SyncBackend = None,
    batch_sizes: grammar.BatchSizes = "32,64,128",
    group_sizes: grammar.GroupSizes = None,
    scaling: grammar.Scaling = "weak",
    arch: grammar.Arch = "mnist_cnn",
    data: grammar.Data = None,
    data_dir: grammar.DataDir = None,
    warmup: grammar.Warmup = "10",
    steps: grammar.Steps = None,
    repetitions: grammar.Repetitions = None,
    precision: grammar.Precision = None,
    budget: grammar.Budget = None,
    accumulate: grammar.Accumulate = "1",
    sync_every: grammar.SyncEvery = None,
    bucket_cap_mb: grammar.BucketCapMb = None,
    optimizer: grammar.Optimizer = "sgd",
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
    name: grammar.Name = None,
    results_dir: grammar.ResultsDir = Path("results"),
    resume: grammar.Resume = False,
    dry_run: grammar.DryRun = False,
    charts: grammar.Charts = True,
    json_rows: grammar.JsonRows = False,
    quiet: grammar.Quiet = False,
    synthetic: grammar.Synthetic = False,
) -> int:
    """Measure every combination of implementation, backend, group size and batch size.

    dpbench sweep --backends gloo,nccl --batch-sizes 32,64 --gpus 2
    """
    typed = locals()
    from dpbench.cli.sweep_options import SweepOptions, parse

    make_importable(arch)
    options = parse(SweepOptions(**_fields_of(SweepOptions, typed)))
    from dpbench.cli.sweep_run import Job, execute

    return execute(Job(**{**_fields_of(Job, typed), "options": options}))


def _fields_of(kind: type[Any], typed: dict[str, Any]) -> dict[str, Any]:
    """The typed values that `kind` has a field for, under the same name."""
    return {field.name: typed[field.name] for field in fields(kind) if field.name in typed}


def make_importable(arch: str) -> None:
    """Lets package.module:factory name a module of the working directory, as python -m would."""
    if ":" in arch and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
