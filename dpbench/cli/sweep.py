"""`dpbench sweep`: measure a grid of configurations and print a row for each."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path

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
    steps: grammar.Steps = "50",
    repetitions: grammar.Repetitions = "3",
    accumulate: grammar.Accumulate = "1",
    sync_every: grammar.SyncEvery = None,
    optimizer: grammar.Optimizer = "sgd",
    lr: grammar.Lr = "0.01",
    seed: grammar.Seed = "0",
    time_limit: grammar.TimeLimit = "5m",
    gpus: grammar.Gpus = None,
    threads: grammar.Threads = None,
    oversubscribe: grammar.Oversubscribe = False,
    order_seed: grammar.OrderSeed = None,
    name: grammar.Name = None,
    results_dir: grammar.ResultsDir = Path("results"),
    resume: grammar.Resume = False,
    dry_run: grammar.DryRun = False,
    json_rows: grammar.JsonRows = False,
    quiet: grammar.Quiet = False,
    synthetic: grammar.Synthetic = False,
) -> int:
    """Measure every combination of implementation, backend, group size and batch size.

    dpbench sweep --backends gloo,nccl --batch-sizes 32,64 --gpus 2
    """
    typed = locals()
    from dpbench.cli.sweep_options import SweepOptions, parse

    _make_importable(arch)
    names = [field.name for field in fields(SweepOptions)]
    options = parse(SweepOptions(**{name: typed[name] for name in names}))
    from dpbench.cli.sweep_run import Job, execute

    return execute(
        Job(
            options=options,
            name=name,
            results_dir=results_dir,
            data_dir=data_dir,
            resume=resume,
            dry_run=dry_run,
            json_rows=json_rows,
            quiet=quiet,
            synthetic=synthetic,
        )
    )


def _make_importable(arch: str) -> None:
    """Lets package.module:factory name a module of the working directory, as python -m would."""
    if ":" in arch and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
