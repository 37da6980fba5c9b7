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
from dpbench.options.model import Options, Panel
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
    arch: ArchitectureName = Panel.OPTIONS.option(
        "Model: a name from 'dpbench list', or file.py:function.",
        "NAME",
        default=shared.DEFAULT_ARCHITECTURE,
    )
    gpus: Gpus | None = Panel.OPTIONS.option(
        "Number of GPUs, or ids (0,1); without CUDA, CPU replicas.", "N|I,J", usual="all, or 1 CPU"
    )
    implementation: Annotated[str, one_of(tuple(BUILT_IN))] = Panel.OPTIONS.option(
        "Implementation; see 'dpbench list implementations'.", "NAME", default="ddp"
    )
    backend: shared.BackendName | None = Panel.OPTIONS.option(
        "gloo, shm or nccl; 'dpbench list backends' has all.",
        "NAME",
        names=("--sync-backend",),
        usual=shared.USUAL_BACKEND,
    )
    batch_size: Count = Panel.OPTIONS.option("Samples per replica and micro-step.", "N", default=64)
    epochs: Count | None = Panel.OPTIONS.option(
        "Passes over the training samples.",
        "N",
        usual=f"{DIGITS_LENGTH['epochs']} on digits, else {DEFAULT_LENGTH['epochs']}",
    )
    resume: FilePath | None = Panel.OPTIONS.option(
        "Run or checkpoint to continue; auto: the run of --name.", "auto|RUN|FILE"
    )
    optimizer: shared.Optimizer = Panel.SETTINGS.option(
        "sgd, adam or adamw, also -fused or -foreach; adadelta, also -foreach.",
        "NAME",
        default="adadelta",
    )
    lr: Positive = Panel.SETTINGS.option("Learning rate.", "X", default=1.0)
    seed: Number = Panel.SETTINGS.option(
        "Seed for weights, sample order and dropout.", "N", default=0
    )
    dtype: shared.Dtype = Panel.SETTINGS.option(
        "Dtype of the forward pass: f32, bf16, f16 or tf32.", "NAME", default="f32"
    )
    compile: shared.CompileMode = Panel.SETTINGS.option(
        "torch.compile: none, default, reduce-overhead, max-autotune.", "MODE", default="none"
    )
    accumulate: Count = Panel.SETTINGS.option(
        "Micro-batches per optimizer step.", "N", default=1, names=("--grad-accum",)
    )
    sync_every: Count | None = Panel.SETTINGS.option(
        "Steps between parameter averages (local-sgd).", "N", usual="1"
    )
    bucket_cap_mb: Megabytes | None = Panel.SETTINGS.option(
        "Bucket size in MiB (ddp, torch-ddp).", "X", usual="1, then 25"
    )
    prefetch: Number = Panel.SETTINGS.option("Steps to load ahead.", "N", default=0)
    threads: Count | None = Panel.SETTINGS.option(
        "CPU threads per replica.", "N", usual="cores ÷ replicas"
    )
    data: Annotated[str, one_of(tuple(DATASETS))] | None = Panel.DATA.option(
        "Dataset: a name from 'dpbench list'.", "NAME", usual="the architecture's own"
    )
    data_dir: FilePath | None = Panel.DATA.option("Folder with the MNIST files.", "DIR")
    download: bool = Panel.DATA.option("Download the MNIST files that --data-dir lacks.")
    limit_train: Count | None = Panel.DATA.option("Train on the first N samples.", "N", usual="all")
    lr_scaling: shared.LrRule = Panel.TRAINING.option(
        "Scale --lr with the samples per step: none, linear or sqrt.", "RULE", default="none"
    )
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
    oversubscribe: bool = Panel.MACHINE.option("Allow more replicas than cores or GPUs.")
    timeout: Duration = Panel.MACHINE.option(
        "Time that ranks wait for each other.", "TIME", default=120.0, usual="2m"
    )
    debug: bool = Panel.MACHINE.option("Enable debug logs of torch.distributed and NCCL.")
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
    dry_run: bool = Panel.OUTPUT.option("Print the size of a step and exit.", printed=True)
    memory: bool = Panel.OUTPUT.option("Print each rank's memory at the end.", printed=True)
    json_lines: bool = Panel.OUTPUT.option("Print the log as JSON Lines on stdout.", printed=True)
    quiet: bool = Panel.OUTPUT.option("Print only the result.", names=("-q",), printed=True)
    local_rank: str | None = Panel.HIDDEN.option(
        "Appended by torch.distributed.launch, and ignored: LOCAL_RANK says the same.",
        "N",
        names=("--local_rank",),
        printed=True,
    )
    preset: str | None = Panel.OPTIONS.option("Start from a preset: torch-ddp.", "NAME")
    config: FilePath | None = shared.CONFIG_FILE
    name: str | None = Panel.OPTIONS.option(
        "Name of the run folder.", "NAME", usual="the time and the architecture"
    )
    as_json: bool = shared.AS_JSON

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
