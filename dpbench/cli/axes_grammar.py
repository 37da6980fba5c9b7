"""The settings of `dpbench sweep` that are lists: how each is spelt and what its help says."""

from __future__ import annotations

from typing import Annotated

import typer

from dpbench.cli import completion

AXES = "Settings, each a list to compare"

Accumulate = Annotated[
    str | None,
    typer.Option(
        "--accumulate",
        metavar="N,N",
        rich_help_panel=AXES,
        help="Micro-steps per optimizer step.",
        show_default="1",
    ),
]
Dtypes = Annotated[
    str | None,
    typer.Option(
        "--dtypes",
        "--dtype",
        metavar="A,B",
        autocompletion=completion.sweep_dtypes,
        rich_help_panel=AXES,
        help="f32, bf16, f16, tf32: of products; parameters and gradients stay f32.",
        show_default="f32",
    ),
]
Compile = Annotated[
    str | None,
    typer.Option(
        metavar="A,B",
        autocompletion=completion.compile_modes,
        rich_help_panel=AXES,
        help="none, default, reduce-overhead (CUDA graphs), max-autotune: of torch.compile.",
        show_default="none",
    ),
]
ChannelsLast = Annotated[
    str | None,
    typer.Option(
        metavar="no,yes",
        rich_help_panel=AXES,
        help="Images in memory pixel by pixel.",
        show_default="no",
    ),
]
CheckpointActivations = Annotated[
    str | None,
    typer.Option(
        metavar="no,yes",
        rich_help_panel=AXES,
        help="Compute blocks again in the backward pass, to save memory.",
        show_default="no",
    ),
]
SyncEvery = Annotated[
    str | None,
    typer.Option(
        metavar="N,N",
        rich_help_panel=AXES,
        help="Of local-sgd: optimizer steps between two averages of parameters.",
        show_default="1",
    ),
]
BucketCapMb = Annotated[
    str | None,
    typer.Option(
        metavar="X,X",
        rich_help_panel=AXES,
        help="Of ddp, torch-ddp and its kin: MiB of gradients in one collective, or auto.",
        show_default="auto: 1, then 25",
    ),
]
CommHook = Annotated[
    str | None,
    typer.Option(
        "--comm-hook",
        "--comm-hooks",
        metavar="A,B",
        autocompletion=completion.comm_hooks,
        rich_help_panel=AXES,
        help="Of the same: none, bf16, powersgd: gradients on their way.",
        show_default="none",
    ),
]
Prefetch = Annotated[
    str | None,
    typer.Option(
        metavar="N,N",
        rich_help_panel=AXES,
        help="Steps whose samples a thread loads ahead from host memory; 0: each step loads its "
        "own; resident: all lie on the device. With --data-workers batches for each worker.",
        show_default="resident, 0 with --data of your own",
    ),
]
DataWorkers = Annotated[
    str | None,
    typer.Option(
        metavar="N,N",
        rich_help_panel=AXES,
        help="Processes of each rank that take samples one by one, as torch's DataLoader has them; "
        "of rows with --prefetch from 1 on.",
        show_default="0",
    ),
]
Optimizer = Annotated[
    str | None,
    typer.Option(
        "--optimizers",
        "--optimizer",
        metavar="A,B",
        autocompletion=completion.optimizers,
        rich_help_panel=AXES,
        help="sgd, adamw, adam, adadelta; with -fused or -foreach the kernels.",
        show_default="sgd",
    ),
]
Exclude = Annotated[
    str | None,
    typer.Option(
        metavar="RULE,RULE",
        rich_help_panel=AXES,
        help="Rows to leave out: those to which all conditions of a rule apply, e.g. "
        "'implementation=dp group_size=4'.",
    ),
]
Include = Annotated[
    str | None,
    typer.Option(
        metavar="RULE,RULE",
        rich_help_panel=AXES,
        help="Rows beyond the grid, e.g. 'implementation=ddp batch_size=256'; of what a rule "
        "leaves open all that the sweep has.",
    ),
]
