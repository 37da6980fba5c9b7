"""`dpbench sweep`: measure a grid of configurations and print a row for each."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

SETTINGS = "Settings of every trial"
MACHINE = "Machine"
OUTPUT = "Results and output"


def sweep(
    implementations: Annotated[
        str,
        typer.Option(
            "--implementations",
            "--implementation",
            metavar="A,B",
            help="Any of dp, ddp (ours), torch-dp, torch-ddp, single, independent.",
        ),
    ] = "dp,ddp",
    backends: Annotated[
        str | None,
        typer.Option(
            "--backends",
            "--backend",
            "--sync-backend",
            metavar="A,B",
            help="gloo, nccl. Default: nccl with CUDA, else gloo.",
        ),
    ] = None,
    batch_sizes: Annotated[
        str,
        typer.Option(
            "--batch-sizes",
            "--batch-size",
            metavar="N,N",
            help="Samples per replica; of the whole group with --scaling strong.",
        ),
    ] = "32,64,128",
    group_sizes: Annotated[
        str | None,
        typer.Option(
            "--group-sizes",
            "--group-size",
            metavar="N,N",
            help="Numbers of replicas. Default: 1 to --gpus.",
        ),
    ] = None,
    scaling: Annotated[
        str,
        typer.Option(
            metavar="weak|strong", help="Keep the batch per replica (weak) or per group (strong)."
        ),
    ] = "weak",
    arch: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            rich_help_panel=SETTINGS,
            help="An architecture of 'dpbench list', or package.module:factory.",
        ),
    ] = "mnist_cnn",
    data: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            rich_help_panel=SETTINGS,
            help="digits, mnist or synthetic. Default: the architecture's own.",
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", rich_help_panel=SETTINGS, help="Where MNIST's files are."),
    ] = None,
    warmup: Annotated[
        str, typer.Option(metavar="N", rich_help_panel=SETTINGS, help="Steps before the window.")
    ] = "10",
    steps: Annotated[
        str, typer.Option(metavar="N", rich_help_panel=SETTINGS, help="Timed steps, exactly.")
    ] = "50",
    repetitions: Annotated[
        str,
        typer.Option(metavar="N", rich_help_panel=SETTINGS, help="Fresh runs of every row."),
    ] = "3",
    accumulate: Annotated[
        str,
        typer.Option(metavar="N", rich_help_panel=SETTINGS, help="Micro-steps per optimizer step."),
    ] = "1",
    optimizer: Annotated[
        str, typer.Option(metavar="sgd|adamw", rich_help_panel=SETTINGS, help="The optimizer.")
    ] = "sgd",
    lr: Annotated[
        str, typer.Option(metavar="X", rich_help_panel=SETTINGS, help="Learning rate, unscaled.")
    ] = "0.01",
    seed: Annotated[
        str, typer.Option(metavar="N", rich_help_panel=SETTINGS, help="Of weights and samples.")
    ] = "0",
    time_limit: Annotated[
        str,
        typer.Option(
            metavar="TIME", rich_help_panel=SETTINGS, help="Per trial: seconds, or 90s, 5m."
        ),
    ] = "5m",
    gpus: Annotated[
        str | None,
        typer.Option(
            metavar="N|I,J",
            rich_help_panel=MACHINE,
            help="How many GPUs, or which (0,1). Without CUDA: CPU replicas, one a core.",
        ),
    ] = None,
    threads: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            rich_help_panel=MACHINE,
            help="Threads per replica. Default: cores ÷ largest group, at every group size.",
        ),
    ] = None,
    oversubscribe: Annotated[
        bool,
        typer.Option(
            "--oversubscribe",
            rich_help_panel=MACHINE,
            help="Allow more replicas than cores or GPUs.",
        ),
    ] = False,
    order_seed: Annotated[
        str | None,
        typer.Option(metavar="N", rich_help_panel=MACHINE, help="Shuffle the order of the rows."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            rich_help_panel=OUTPUT,
            help="Folder of this sweep. Default: the time and the architecture.",
        ),
    ] = None,
    results_dir: Annotated[
        Path, typer.Option(metavar="DIR", rich_help_panel=OUTPUT, help="Folder of all sweeps.")
    ] = Path("results"),
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", rich_help_panel=OUTPUT, help="Finish the sweep --name; repeat nothing."
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", rich_help_panel=OUTPUT, help="Print the plan and how long it may take."
        ),
    ] = False,
    json_rows: Annotated[
        bool,
        typer.Option(
            "--json", rich_help_panel=OUTPUT, help="Rows as JSON on stdout, all else on stderr."
        ),
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", rich_help_panel=OUTPUT, help="No progress.")
    ] = False,
    synthetic: Annotated[bool, typer.Option("--synthetic-launcher", hidden=True)] = False,
) -> int:
    """Measure every combination of implementation, backend, group size and batch size.

    dpbench sweep --backends gloo,nccl --batch-sizes 32,64 --gpus 2
    """
    from dpbench.cli.sweep_options import SweepOptions, parse

    options = SweepOptions(
        implementations=implementations,
        backends=backends,
        gpus=gpus,
        group_sizes=group_sizes,
        batch_sizes=batch_sizes,
        scaling=scaling,
        warmup=warmup,
        steps=steps,
        repetitions=repetitions,
        arch=arch,
        data=data,
        optimizer=optimizer,
        lr=lr,
        accumulate=accumulate,
        threads=threads,
        oversubscribe=oversubscribe,
        seed=seed,
        order_seed=order_seed,
        time_limit=time_limit,
    )
    _make_importable(arch)
    parsed = parse(options)
    from dpbench.cli.sweep_run import Job, execute

    return execute(
        Job(
            options=parsed,
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
