"""The options of `dpbench train`, each declared once, and which of them go together."""

from __future__ import annotations

from os import PathLike, fspath
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import BeforeValidator, model_validator

from dpbench.options.bridge import Options, option
from dpbench.options.shared import (
    ACCUMULATE_HELP,
    ARCH_HELP,
    ARCHITECTURE,
    BACKENDS_HELP,
    COMPILE_HELP,
    DATA_PANEL,
    DEBUG_HELP,
    DTYPES_HELP,
    LR_SCALING_HELP,
    MACHINE_PANEL,
    OPTIMIZER_HELP,
    OUTPUT_PANEL,
    SETTINGS_PANEL,
    SYNC_EVERY_HELP,
    THREADS_HELP,
    USUAL_BACKEND,
    Backend,
    Implementation,
    config_option,
    json_option,
    name_option,
    printed,
    refuse_graphs_that_accumulate,
    refuse_if,
    require_setting,
)
from dpbench.options.types import (
    Choice,
    Count,
    Duration,
    FilePath,
    Gpus,
    Number,
    PositiveNumber,
)
from dpbench.specs.axes import COMPILE_MODES, OPTIMIZERS
from dpbench.specs.training import Balance, Evaluation, LastWindow, TrainingRun
from dpbench.specs.traits import IMPLEMENTATIONS
from dpbench.specs.workload import DTYPE_NAMES, LR_RULES

PRESETS = ("torch-ddp",)
Positive = Annotated[float, PositiveNumber()]


def _dataset(value: Any) -> str:
    from dpbench.data.registry import DATASETS

    return Choice(tuple(DATASETS)).parse(value)


def _path_as_text(value: Any) -> Any:
    return fspath(value) if isinstance(value, PathLike) else value


class UsualOptions(Options):
    """The options that most trainings need: the first panel of help."""

    arch: str = option(ARCHITECTURE, ARCH_HELP, "NAME")
    gpus: Gpus | None = option(
        None,
        "Number of GPUs, or ids (0,1); without CUDA, CPU replicas.",
        "N|I,J",
        also=("--group-size",),
        usual="all, or 1 CPU",
    )
    implementation: Implementation = option(
        "ddp", "Implementation; see 'dpbench list implementations'.", "NAME"
    )
    backend: Backend | None = option(
        None, BACKENDS_HELP, "NAME", also=("--sync-backend",), usual=USUAL_BACKEND
    )
    batch_size: Count = option(64, "Samples per replica and micro-step.", "N")
    epochs: Count | None = option(
        None, "Passes over the training samples.", "N", usual="10 on digits, else 5"
    )
    resume: Annotated[str, BeforeValidator(_path_as_text)] | None = option(
        None,
        "Run or checkpoint to continue; auto: the run of --name.",
        "auto|RUN|FILE",
        scope="call",
    )


class TrainSettingOptions(Options):
    """The settings that a sweep has as well."""

    panel = SETTINGS_PANEL
    optimizer: Annotated[str, Choice(OPTIMIZERS)] = option(
        "adadelta", OPTIMIZER_HELP, "NAME", also=("--optimizers",)
    )
    lr: Positive = option(1.0, "Learning rate.", "X")
    seed: Number = option(0, "Seed for weights, sample order and dropout.", "N")
    dtype: Annotated[str, Choice(DTYPE_NAMES)] = option(
        "f32", DTYPES_HELP, "NAME", also=("--dtypes",)
    )
    compile: Annotated[str, Choice(COMPILE_MODES)] = option("none", COMPILE_HELP, "MODE")
    accumulate: Count = option(1, ACCUMULATE_HELP, "N", also=("--grad-accum",))
    sync_every: Count | None = option(None, SYNC_EVERY_HELP, "N", usual="1")
    bucket_cap_mb: Annotated[float, PositiveNumber(most=1e6)] | None = option(
        None, "Bucket size in MiB (ddp, torch-ddp).", "X", usual="1, then 25"
    )
    prefetch: Number = option(0, "Steps to load ahead.", "N")
    threads: Count | None = option(None, THREADS_HELP, "N", usual="cores ÷ replicas")


class TrainDataOptions(Options):
    """The model and the data."""

    panel = DATA_PANEL
    data: Annotated[str, BeforeValidator(_dataset)] | None = option(
        None, "Dataset: a name from 'dpbench list'.", "NAME", usual="the architecture's own"
    )
    data_dir: FilePath | None = option(None, "Folder with the MNIST files.", "DIR")
    download: bool = option(False, "Download the MNIST files that --data-dir lacks.")
    limit_train: Count | None = option(None, "Train on the first N samples.", "N", usual="all")


class LearningOptions(Options):
    """How parameters change."""

    panel = "Training"
    lr_scaling: Annotated[str, Choice(LR_RULES)] = option("none", LR_SCALING_HELP, "RULE")
    lr_warmup: Number = option(0, "Steps over which --lr rises to the scaled rate.", "N")
    gamma: Positive | None = option(
        None,
        "Multiply the learning rate by this each epoch (StepLR).",
        "X",
        usual="0.85 on digits, else 0.7",
    )
    max_norm: Positive | None = option(None, "Clip the gradient norm to this value.", "X")
    last_window: Annotated[LastWindow, Choice(get_args(LastWindow))] = option(
        "step", "Incomplete window at the end of an epoch: step or drop.", "step|drop"
    )
    balance: Annotated[Balance, Choice(get_args(Balance))] = option(
        "equal", "Split batches equally or by each rank's speed.", "equal|speed"
    )
    max_steps: Count | None = option(
        None, "Stop after this many optimizer steps.", "N", usual="all epochs"
    )
    evaluate: Annotated[Evaluation, Choice(get_args(Evaluation))] = option(
        "sharded", "Evaluate on all ranks, on rank 0, or not at all.", "sharded|rank0|off"
    )
    check_sync_every: Count | None = option(
        None, "Compare the ranks' parameters every K steps.", "K"
    )


class ReplicaOptions(Options):
    """How this machine is used."""

    panel = MACHINE_PANEL
    oversubscribe: bool = option(False, "Allow more replicas than cores or GPUs.")
    timeout: Duration = option(120.0, "Time that ranks wait for each other.", "TIME", usual="2m")
    debug: bool = option(False, DEBUG_HELP)


class WatchOptions(Options):
    """Checkpoints, the run folder, and what is printed."""

    panel = OUTPUT_PANEL
    runs_dir: FilePath = option(Path("runs"), "Directory for run folders.", "DIR", scope="call")
    checkpoint: FilePath | None = option(None, "Also write each checkpoint to this file.", "FILE")
    checkpoint_every: Count | None = option(
        None, "Steps between checkpoints.", "N", usual="an epoch"
    )
    max_checkpoints: Count = option(10, "Checkpoints to keep: the latest N, and the best.", "N")
    log_interval: Count = option(20, "Steps between log lines.", "N")
    dry_run: bool = printed("Print the size of a step and exit.")
    memory: bool = printed("Print each rank's memory at the end.")
    json_lines: bool = printed("Print the log as JSON Lines on stdout.")
    quiet: bool = printed("Print only the result.", "--quiet", "-q")
    local_rank: str | None = option(
        None,
        "Appended by torch.distributed.launch, and ignored: LOCAL_RANK says the same.",
        also=("--local_rank",),
        scope="shell",
        hidden=True,
    )


class TrainOptions(
    WatchOptions,
    ReplicaOptions,
    LearningOptions,
    TrainDataOptions,
    TrainSettingOptions,
    UsualOptions,
):
    """Every option of a training; None leaves it to dpbench, which decides by machine and data."""

    preset: str | None = option(
        None, f"Start from a preset: {', '.join(PRESETS)}.", "NAME", scope="call"
    )
    config: FilePath | None = config_option()
    name: str | None = name_option("Name of the run folder.", "the time and the architecture")
    as_json: bool = json_option()

    @property
    def run(self) -> TrainingRun:
        """The part of a training that changes no parameter: logs, checkpoints, time limits."""
        return TrainingRun(
            evaluation=self.evaluate,
            max_steps=self.max_steps,
            log_interval=self.log_interval,
            # Absolute, as ranks may run in another folder.
            checkpoint=None if self.checkpoint is None else str(self.checkpoint.absolute()),
            checkpoint_every=self.checkpoint_every,
            max_checkpoints=self.max_checkpoints,
            prefetch=self.prefetch,
            check_sync_every=self.check_sync_every,
            timeout_seconds=self.timeout,
            debug=self.debug,
        )

    @model_validator(mode="after")
    def _go_together(self) -> TrainOptions:
        """Raises UsageError for options that contradict each other, or would have no effect."""
        for field in ("sync_every", "bucket_cap_mb"):
            if (value := getattr(self, field)) is not None:
                asked = f"--{field.replace('_', '-')} {value:g}"
                require_setting(field, asked, (self.implementation,), chosen="implementation")
        refuse_if(
            self.backend is not None and IMPLEMENTATIONS[self.implementation].backend is not None,
            f"--backend {self.backend}: {self.implementation} has no choice of backend; leave "
            "--backend out, or take an implementation that has one, such as ddp",
            *("backend", "implementation"),
        )
        refuse_graphs_that_accumulate((self.compile,), (self.accumulate,))
        refuse_if(
            self.lr_warmup > 0 and self.lr_scaling == "none",
            f"--lr-warmup {self.lr_warmup}: the rate rises from --lr to the scaled one, and with "
            "--lr-scaling none they are the same; add --lr-scaling linear or sqrt",
            *("lr_warmup", "lr_scaling"),
        )
        if (path := self.checkpoint) is not None:  # it is only written after an epoch
            refuse_if(
                path.is_dir() or not path.parent.is_dir(),
                f"--checkpoint {path}: expected the name of a file in a folder that exists",
                "checkpoint",
            )
        refuse_if(
            self.download and (self.data != "mnist" or self.data_dir is None),
            "--download fetches MNIST; it needs --data mnist, and --data-dir with the folder to "
            "download to",
            *("download", "data", "data_dir"),
        )
        return self
