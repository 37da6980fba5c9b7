"""The options of `dpbench sweep`: how each is spelt and what its help says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpbench.cli import completion
from dpbench.traits import IMPLEMENTATIONS, names_for_help

SETTINGS = "Settings of every trial"
MACHINE = "Machine"
OUTPUT = "Results and output"

Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-f",
        metavar="FILE",
        help="Options from a TOML or YAML file; what is typed goes before it.",
    ),
]
Preset = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        autocompletion=completion.presets,
        help="Options that ship: quick, ci, full, paper; --config goes before them.",
    ),
]
Implementations = Annotated[
    str,
    typer.Option(
        "--implementations",
        "--implementation",
        metavar="A,B",
        autocompletion=completion.implementations,
        help=f"Any of {names_for_help(IMPLEMENTATIONS)}.",
    ),
]
Backends = Annotated[
    str | None,
    typer.Option(
        "--backends",
        "--backend",
        metavar="A,B",
        autocompletion=completion.backends,
        help="gloo, nccl, shm.",
        show_default="nccl with CUDA, else gloo",
    ),
]
SyncBackend = Annotated[
    str | None,
    typer.Option(
        metavar="A,B",
        autocompletion=completion.backends,
        help="Another name for --backends; cpu means shm.",
    ),
]
BatchSizes = Annotated[
    str,
    typer.Option(
        "--batch-sizes",
        "--batch-size",
        metavar="N,N",
        help="Samples per replica; of the whole group with --scaling strong. max: the most that "
        "fit.",
    ),
]
GroupSizes = Annotated[
    str | None,
    typer.Option(
        "--group-sizes",
        "--group-size",
        metavar="N,N",
        help="Numbers of replicas.",
        show_default="1 to --gpus",
    ),
]
Scaling = Annotated[
    str,
    typer.Option(
        metavar="weak|strong",
        autocompletion=completion.scalings,
        help="Keep the batch per replica (weak) or per group (strong).",
    ),
]
Arch = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        autocompletion=completion.architectures,
        rich_help_panel=SETTINGS,
        help="An architecture of 'dpbench list', file.py:factory, package.module:factory, or "
        "timm:, torchvision:, transformers:NAME; see docs/architectures.md.",
    ),
]
Step = Annotated[
    str | None,
    typer.Option(
        metavar="FILE:NAME",
        rich_help_panel=SETTINGS,
        help="A training step of your own: file.py:step or package.module:step; see "
        "docs/architectures.md.",
        show_default="dpbench's",
    ),
]
InputShape = Annotated[
    str | None,
    typer.Option(
        metavar="N,N",
        rich_help_panel=SETTINGS,
        help="Of a sample, for an --arch that gives only a model.",
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        autocompletion=completion.datasets,
        rich_help_panel=SETTINGS,
        help="digits, mnist, iris, wine, breast_cancer, diabetes, text or synthetic; or your own: "
        "file.py:dataset or package.module:dataset, a function that returns a torch Dataset.",
        show_default="the architecture's own",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH",
        rich_help_panel=SETTINGS,
        help="The folder of MNIST's files, or the file of text.",
    ),
]
Warmup = Annotated[
    str, typer.Option(metavar="N", rich_help_panel=SETTINGS, help="Steps before the window.")
]
Steps = Annotated[
    str | None,
    typer.Option(
        metavar="N|auto",
        rich_help_panel=SETTINGS,
        help="Timed steps, exactly; auto: as many as --precision takes.",
        show_default="50, or auto with --precision",
    ),
]
Repetitions = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        rich_help_panel=SETTINGS,
        help="Fresh runs of every row.",
        show_default="3, or from 5 on with --precision",
    ),
]
Precision = Annotated[
    str | None,
    typer.Option(
        metavar="P%",
        rich_help_panel=SETTINGS,
        help="Add steps and repetitions until every interval of speed is within ± P %.",
    ),
]
Budget = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        rich_help_panel=SETTINGS,
        help="When --precision stops adding repetitions.",
        show_default="10m with --precision",
    ),
]
TargetLoss = Annotated[
    str | None,
    typer.Option(
        metavar="X", rich_help_panel=SETTINGS, help="Report the time until the loss stays below X."
    ),
]
Phases = Annotated[
    str,
    typer.Option(
        metavar="N",
        rich_help_panel=SETTINGS,
        help="Steps after the window whose phases are timed; 0 for none.",
    ),
]
NoiseScale = Annotated[
    str,
    typer.Option(
        metavar="N",
        rich_help_panel=SETTINGS,
        help="Global batches after the window to estimate the gradient noise scale from, e.g. 50.",
    ),
]
Trace = Annotated[
    str,
    typer.Option(
        metavar="N",
        rich_help_panel=SETTINGS,
        help="Steps after the window to record with torch's profiler, as a Chrome trace.",
    ),
]
GradientSteps = Annotated[
    str,
    typer.Option(
        metavar="N",
        rich_help_panel=SETTINGS,
        help="Steps after the window that note when each gradient of one replica is ready.",
    ),
]
StopAfterFailure = Annotated[
    bool,
    typer.Option(
        "--stop-after-failure",
        rich_help_panel=SETTINGS,
        help="Skip the larger group sizes of a row that failed.",
    ),
]
Lr = Annotated[str, typer.Option(metavar="X", rich_help_panel=SETTINGS, help="The learning rate.")]
LrScaling = Annotated[
    str,
    typer.Option(
        metavar="none|linear|sqrt",
        autocompletion=completion.learning_rate_rules,
        rich_help_panel=SETTINGS,
        help="How --lr follows the samples behind an optimizer step ÷ --batch-sizes. The linear "
        "rule is for SGD; no warm-up is applied.",
    ),
]
Seed = Annotated[
    str, typer.Option(metavar="N", rich_help_panel=SETTINGS, help="Of weights and samples.")
]
TimeLimit = Annotated[
    str,
    typer.Option(metavar="TIME", rich_help_panel=SETTINGS, help="Per trial: seconds, or 90s, 5m."),
]
Gpus = Annotated[
    str | None,
    typer.Option(
        metavar="N|I,J",
        rich_help_panel=MACHINE,
        help="How many GPUs, or which (0,1). Without CUDA: CPU replicas, one a core.",
    ),
]
Threads = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        rich_help_panel=MACHINE,
        help="Threads per replica, at every group size.",
        show_default="cores ÷ largest group",
    ),
]
Oversubscribe = Annotated[
    bool,
    typer.Option(
        "--oversubscribe",
        rich_help_panel=MACHINE,
        help="Allow more replicas than cores or GPUs.",
    ),
]
OrderSeed = Annotated[
    str | None,
    typer.Option(metavar="N", rich_help_panel=MACHINE, help="Shuffle the order of the rows."),
]
Name = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        rich_help_panel=OUTPUT,
        help="Folder of this sweep.",
        show_default="the time and the architecture",
    ),
]
ResultsDir = Annotated[
    Path, typer.Option(metavar="DIR", rich_help_panel=OUTPUT, help="Folder of all sweeps.")
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume", rich_help_panel=OUTPUT, help="Finish the sweep --name; repeat nothing."
    ),
]
Retry = Annotated[
    str | None,
    typer.Option(
        metavar="STATUS,...",
        rich_help_panel=OUTPUT,
        help="With --resume, measure stored trials of this status again: failed, ...",
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", rich_help_panel=OUTPUT, help="Print the plan and how long it may take."
    ),
]
ShowConfig = Annotated[
    bool,
    typer.Option(
        "--show-config", rich_help_panel=OUTPUT, help="Print all options as YAML, and end."
    ),
]
Charts = Annotated[
    bool,
    typer.Option(
        "--charts/--no-charts", rich_help_panel=OUTPUT, help="Draw the charts of the report."
    ),
]
JsonRows = Annotated[
    bool,
    typer.Option(
        "--json", rich_help_panel=OUTPUT, help="Rows as JSON on stdout, all else on stderr."
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", rich_help_panel=OUTPUT, help="No progress.")]
Synthetic = Annotated[bool, typer.Option("--synthetic-launcher", hidden=True)]
