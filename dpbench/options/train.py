"""The options of `dpbench train`, each declared once, and which of them go together."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated

from pydantic import model_validator

from dpbench.data.registry import DATASETS
from dpbench.errors import UsageError
from dpbench.messages import option_words
from dpbench.options import shared
from dpbench.options.model import Options, Panel, option
from dpbench.options.shared import HELP, print_option
from dpbench.options.types import (
    ArchitectureName,
    Count,
    Duration,
    FilePath,
    Gpus,
    Megabytes,
    Number,
    OutputFile,
    Positive,
    one_of,
)
from dpbench.specs.training import Balance, Evaluation, LastBatch, TrainingRunOptions
from dpbench.specs.traits import BUILT_IN

DEFAULT_LENGTH = {"epochs": 5, "gamma": 0.7}
"""As the MNIST example of torch has them."""
DIGITS_LENGTH = {"epochs": 10, "gamma": 0.85}
"""The same for digits, of which two replicas would take too few steps in five epochs."""


class TrainOptions(Options):
    """Every option of a training; None leaves it to dpbench, which decides by machine and data."""

    presets = ("torch-ddp",)
    arch: ArchitectureName = option(HELP["arch"], "NAME", default=shared.DEFAULT_ARCHITECTURE)
    gpus: Gpus | None = shared.gpus_option(usual="all, or 1 CPU")
    implementation: Annotated[str, one_of(tuple(BUILT_IN))] = option(
        "Implementation; see 'dpbench list implementations'.", "NAME", default="ddp"
    )
    backend: shared.BackendName | None = option(
        HELP["backends"], "NAME", names=("--sync-backend",), usual=shared.USUAL_BACKEND
    )
    batch_size: Count = option("Samples per replica and micro-step.", "N", default=64)
    epochs: Count | None = option(
        "Passes over the training samples.",
        "N",
        usual=f"{DIGITS_LENGTH['epochs']} on digits, else {DEFAULT_LENGTH['epochs']}",
    )
    resume: FilePath | None = option(
        "Run or checkpoint to continue; auto: the run of --name.", "auto|RUN|FILE"
    )
    optimizer: shared.Optimizer = Panel.SETTINGS.option(
        HELP["optimizer"], "NAME", default="adadelta"
    )
    lr: Positive = Panel.SETTINGS.option("Learning rate.", "X", default=1.0)
    seed: Number = Panel.SETTINGS.option(
        "Seed for weights, sample order and dropout.", "N", default=0
    )
    dtype: shared.Dtype = Panel.SETTINGS.option(HELP["dtype"], "NAME", default="f32")
    compile: shared.CompileMode = Panel.SETTINGS.option(HELP["compile"], "MODE", default="none")
    accumulate: Count = Panel.SETTINGS.option(
        HELP["accumulate"], "N", default=1, names=("--grad-accum",)
    )
    sync_every: Count | None = Panel.SETTINGS.option(HELP["sync_every"], "N", usual="1")
    bucket_cap_mb: Megabytes | None = Panel.SETTINGS.option(
        "Bucket size in MiB (ddp, torch-ddp).", "X", usual="1, then 25"
    )
    prefetch: Number = Panel.SETTINGS.option("Steps to load ahead.", "N", default=0)
    threads: Count | None = Panel.SETTINGS.option(HELP["threads"], "N", usual="cores ÷ replicas")
    data: Annotated[str, one_of(tuple(DATASETS))] | None = Panel.DATA.option(
        "Dataset: a name from 'dpbench list'.", "NAME", usual="the architecture's own"
    )
    data_dir: FilePath | None = Panel.DATA.option(HELP["data_dir"], "DIR")
    download: bool = Panel.DATA.option(
        "Download the MNIST files that --data-dir lacks.", default=False
    )
    limit_train: Count | None = Panel.DATA.option("Train on the first N samples.", "N", usual="all")
    lr_scaling: shared.LrRule = Panel.TRAINING.option(HELP["lr_scaling"], "RULE", default="none")
    gamma: Positive | None = Panel.TRAINING.option(
        "Multiply the learning rate by this each epoch (StepLR).",
        "X",
        usual=f"{DIGITS_LENGTH['gamma']} on digits, else {DEFAULT_LENGTH['gamma']}",
    )
    max_norm: Positive | None = Panel.TRAINING.option("Clip the gradient norm to this value.", "X")
    last_batch: LastBatch = Panel.TRAINING.option(
        "Incomplete batch at the end of an epoch: step or drop.", "step|drop", default="step"
    )
    balance: Balance = Panel.TRAINING.option(
        "Split batches equally or by each rank's speed.", "equal|speed", default="equal"
    )
    max_steps: Count | None = Panel.TRAINING.option(
        "Stop after this many optimizer steps.", "N", usual="all epochs"
    )
    evaluate: Evaluation = Panel.TRAINING.option(
        "Evaluate on all ranks, on rank 0, or not at all.", "sharded|rank0|off", default="sharded"
    )
    check_sync_every: Count | None = Panel.TRAINING.option(
        "Compare the ranks' parameters every K steps.", "K"
    )
    oversubscribe: bool = Panel.MACHINE.option(HELP["oversubscribe"], default=False)
    timeout: Duration = Panel.MACHINE.option(
        "Time that ranks wait for each other.", "TIME", default=120.0, usual="2m"
    )
    debug: bool = Panel.MACHINE.option(HELP["debug"], default=False)
    runs_dir: FilePath = Panel.OUTPUT.option(
        "Directory for run folders.", "DIR", default=Path("runs")
    )
    checkpoint: OutputFile | None = Panel.OUTPUT.option(
        "Also write each checkpoint to this file.", "FILE"
    )
    checkpoint_every: Count | None = Panel.OUTPUT.option(
        "Steps between checkpoints.", "N", usual="an epoch"
    )
    max_checkpoints: Count = Panel.OUTPUT.option(
        "Checkpoints to keep: the latest N, and the best.", "N", default=10
    )
    log_interval: Count = Panel.OUTPUT.option("Steps between log lines.", "N", default=20)
    dry_run: bool = print_option("Print the size of a step and exit.")
    memory: bool = print_option("Print each rank's memory at the end.")
    json_lines: bool = print_option("Print the log as JSON Lines on stdout.")
    quiet: bool = print_option("Print only the result.", names=("-q",))
    local_rank: str | None = Panel.HIDDEN.option(
        "Appended by torch.distributed.launch, and ignored: LOCAL_RANK says the same.",
        names=("--local_rank",),
        printed=True,
    )
    preset: str | None = option("Start from a preset: torch-ddp.", "NAME")
    config: FilePath | None = shared.config_option()
    name: str | None = option(
        "Name of the run folder.", "NAME", usual="the time and the architecture"
    )
    as_json: bool = shared.json_option()

    @property
    def run(self) -> TrainingRunOptions:
        """The part of a training that changes no parameter: logs, checkpoints, time limits."""
        same = self.model_dump(include={field.name for field in fields(TrainingRunOptions)})
        if self.checkpoint is not None:  # absolute, as ranks may run in another folder
            same["checkpoint"] = str(self.checkpoint.absolute())
        return TrainingRunOptions(evaluation=self.evaluate, timeout_seconds=self.timeout, **same)

    @model_validator(mode="after")
    def _go_together(self) -> TrainOptions:
        """Raise UsageError for options that contradict each other, or would have no effect."""
        for field in ("backend", "sync_every", "bucket_cap_mb"):
            if (value := getattr(self, field)) is not None:
                shared.require_setting(field, value, (self.implementation,), "implementation")
        if self.download and (self.data != "mnist" or self.data_dir is None):
            raise UsageError(
                f"{option_words('download', True)}: expected {option_words('data', 'mnist')}, and "
                f"{option_words('data_dir')} with the folder to download to"
            )
        return self
