"""The options of `dpbench train`: how each is spelt and what its help says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpbench.cli import completion
from dpbench.traits import TRAINABLE, names_for_help

LEARNING = "How it learns"
COMPUTED = "How a step is computed"
REPLICAS = "Replicas and their collectives"
KEPT = "Log and checkpoints"
OUTPUT = "Run folder and output"

Arch = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        autocompletion=completion.architectures,
        help="An architecture of 'dpbench list', file.py:factory, package.module:factory, or "
        "timm:, torchvision:, transformers:NAME; see docs/architectures.md.",
    ),
]
InputShape = Annotated[
    str | None,
    typer.Option(metavar="N,N", help="Of a sample, for an --arch that gives only a model."),
]
Data = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        autocompletion=completion.datasets,
        help="digits, mnist, iris, wine, breast_cancer, diabetes, text or synthetic.",
        show_default="the architecture's own",
    ),
]
DataDir = Annotated[
    str | None,
    typer.Option(metavar="PATH", help="The folder of MNIST's files, or the file of text."),
]
LimitTrain = Annotated[
    str | None,
    typer.Option(metavar="N", help="Train on the first N samples.", show_default="all"),
]
Epochs = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        help="Passes over the training samples.",
        show_default="10 on digits, else 5",
    ),
]
MaxSteps = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        help="Stop after N optimizer steps in all; --resume goes on from there.",
        show_default="after all epochs",
    ),
]
BatchSize = Annotated[str, typer.Option(metavar="N", help="Samples per replica and micro-step.")]
Seed = Annotated[str, typer.Option(metavar="N", help="Of weights, order of samples, and dropout.")]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-f",
        metavar="FILE",
        help="Options from a YAML or TOML file; what is typed goes before it.",
    ),
]

Optimizer = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        autocompletion=completion.optimizers,
        rich_help_panel=LEARNING,
        help="adadelta, adam, adamw or sgd.",
    ),
]
Lr = Annotated[str, typer.Option(metavar="X", rich_help_panel=LEARNING, help="The learning rate.")]
Gamma = Annotated[
    str | None,
    typer.Option(
        metavar="X",
        rich_help_panel=LEARNING,
        help="Its factor after each epoch, as of StepLR.",
        show_default="0.85 on digits, else 0.7",
    ),
]
LrScaling = Annotated[
    str,
    typer.Option(
        metavar="none|linear|sqrt",
        autocompletion=completion.learning_rate_rules,
        rich_help_panel=LEARNING,
        help="How --lr follows the samples behind an optimizer step ÷ --batch-size.",
    ),
]
LrWarmup = Annotated[
    str,
    typer.Option(
        metavar="STEPS",
        rich_help_panel=LEARNING,
        help="Optimizer steps in which the rate rises from --lr to the scaled one.",
    ),
]
Accumulate = Annotated[
    str,
    typer.Option(
        "--accumulate",
        "--grad-accum",
        metavar="N",
        rich_help_panel=LEARNING,
        help="Micro-steps per optimizer step; gradients are reduced once.",
    ),
]
LastWindow = Annotated[
    str,
    typer.Option(
        metavar="step|drop",
        autocompletion=completion.last_windows,
        rich_help_panel=LEARNING,
        help="What becomes of fewer micro-steps than --accumulate at the end of an epoch.",
    ),
]
Dtype = Annotated[
    str,
    typer.Option(
        metavar="f32|bf16|f16|tf32",
        autocompletion=completion.dtypes,
        rich_help_panel=COMPUTED,
        help="Of the forward pass (autocast); parameters stay f32. f16 and tf32 need CUDA.",
    ),
]
Compile = Annotated[
    str,
    typer.Option(
        metavar="none|default|reduce-overhead|max-autotune",
        autocompletion=completion.compile_modes,
        rich_help_panel=COMPUTED,
        help="Mode of torch.compile.",
    ),
]
ChannelsLast = Annotated[
    str,
    typer.Option(
        metavar="no|yes", rich_help_panel=COMPUTED, help="Images in memory pixel by pixel."
    ),
]
CheckpointActivations = Annotated[
    str,
    typer.Option(
        metavar="no|yes",
        rich_help_panel=COMPUTED,
        help="Compute blocks again in the backward pass, to save memory.",
    ),
]
MaxNorm = Annotated[
    str | None,
    typer.Option(
        metavar="X", rich_help_panel=LEARNING, help="Scale the gradient down to this norm."
    ),
]

Implementation = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        autocompletion=completion.implementations,
        rich_help_panel=REPLICAS,
        help=f"One of {names_for_help(TRAINABLE)}.",
    ),
]
Backend = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        autocompletion=completion.backends,
        rich_help_panel=REPLICAS,
        help="gloo, nccl or shm.",
        show_default="nccl with CUDA, else gloo",
    ),
]
SyncBackend = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        autocompletion=completion.backends,
        rich_help_panel=REPLICAS,
        help="Another name for --backend; cpu means shm.",
    ),
]
Gpus = Annotated[
    str | None,
    typer.Option(
        "--gpus",
        "--group-size",
        metavar="N|I,J",
        rich_help_panel=REPLICAS,
        help="How many GPUs, or which (0,1), a replica on each. Without CUDA: CPU replicas.",
        show_default="all GPUs; 1 without CUDA",
    ),
]
Threads = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        rich_help_panel=REPLICAS,
        help="Threads per replica.",
        show_default="cores ÷ replicas",
    ),
]
Oversubscribe = Annotated[
    bool,
    typer.Option(
        "--oversubscribe",
        rich_help_panel=REPLICAS,
        help="Allow more replicas than cores or GPUs.",
    ),
]
SyncEvery = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        rich_help_panel=REPLICAS,
        help="Of local-sgd: optimizer steps between two averages of parameters.",
        show_default="1",
    ),
]
BucketCapMb = Annotated[
    str | None,
    typer.Option(
        metavar="X",
        rich_help_panel=REPLICAS,
        help="Of ddp, torch-ddp and its kin: MiB of gradients in one collective.",
        show_default="1, then 25",
    ),
]
Balance = Annotated[
    str,
    typer.Option(
        metavar="equal|speed",
        autocompletion=completion.balances,
        rich_help_panel=REPLICAS,
        help="Equal parts of every batch, or by the speed of each rank in the epoch before.",
    ),
]
Shares = Annotated[
    str | None,
    typer.Option(
        metavar="X,Y",
        rich_help_panel=REPLICAS,
        help="Parts of every batch by rank, as in 2,1.",
    ),
]
Timeout = Annotated[
    str,
    typer.Option(
        metavar="TIME",
        rich_help_panel=REPLICAS,
        help="How long ranks wait for each other: seconds, or 90s, 5m.",
    ),
]
Debug = Annotated[
    bool,
    typer.Option(
        "--debug", rich_help_panel=REPLICAS, help="Let torch.distributed and NCCL say more."
    ),
]

Prefetch = Annotated[
    str,
    typer.Option(
        metavar="N",
        rich_help_panel=KEPT,
        help="Windows (the batches of one optimizer step) that a thread makes ahead.",
    ),
]
Evaluate = Annotated[
    str | None,
    typer.Option(
        metavar="sharded|rank0|off",
        autocompletion=completion.evaluations,
        rich_help_panel=KEPT,
        help="Who evaluates the test samples after each epoch; the numbers are the same.",
        show_default="sharded",
    ),
]
NoEval = Annotated[
    bool, typer.Option("--no-eval", rich_help_panel=KEPT, help="The same as --evaluate off.")
]
LogInterval = Annotated[
    str,
    typer.Option(metavar="N", rich_help_panel=KEPT, help="Optimizer steps between two lines."),
]
CheckSyncEvery = Annotated[
    str | None,
    typer.Option(
        metavar="K",
        rich_help_panel=KEPT,
        help="Compare the parameters of all ranks every K optimizer steps.",
    ),
]
CheckpointEvery = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        rich_help_panel=KEPT,
        help="Optimizer steps between two checkpoints.",
        show_default="an epoch",
    ),
]
MaxCheckpoints = Annotated[
    str,
    typer.Option(metavar="N", rich_help_panel=KEPT, help="Keep the latest N, and the best."),
]
Resume = Annotated[
    str | None,
    typer.Option(
        metavar="auto|RUN|FILE",
        rich_help_panel=KEPT,
        help="Go on with a run, from a checkpoint, or (auto) with the run of this training.",
    ),
]

Name = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        rich_help_panel=OUTPUT,
        help="Folder of this run.",
        show_default="the time and the architecture",
    ),
]
RunsDir = Annotated[
    Path, typer.Option(metavar="DIR", rich_help_panel=OUTPUT, help="Folder of all runs.")
]
ShowConfig = Annotated[
    bool,
    typer.Option(
        "--show-config", rich_help_panel=OUTPUT, help="Print all options as YAML, and end."
    ),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", rich_help_panel=OUTPUT, help="Print the size of a step, and end."),
]
Memory = Annotated[
    bool,
    typer.Option("--memory", rich_help_panel=OUTPUT, help="Print each rank's memory at the end."),
]
JsonResult = Annotated[
    bool,
    typer.Option(
        "--json", rich_help_panel=OUTPUT, help="The result as JSON on stdout, all else on stderr."
    ),
]
JsonLines = Annotated[
    bool,
    typer.Option("--json-lines", rich_help_panel=OUTPUT, help="The log as JSON Lines on stdout."),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", rich_help_panel=OUTPUT, help="Only the result.")
]
SeqLen = Annotated[
    str | None, typer.Option("--seq-len", "--seq-length", "--sequence-length", hidden=True)
]
"""What other programs call an option of the architecture here."""
LocalRank = Annotated[str | None, typer.Option("--local-rank", "--local_rank", hidden=True)]
"""What torch.distributed.launch adds; the variable of this name says the same."""
