"""The options of `dpbench train`, each declared once, and which of them go together."""

from __future__ import annotations

from os import PathLike, fspath
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import BeforeValidator, model_validator

from dpbench.errors import UsageError
from dpbench.options.bridge import OptionInfo, Options
from dpbench.options.shared import (
    ARCH,
    ARCHITECTURE,
    CONFIG,
    DATA_DIR,
    OUTPUT_PANEL,
    SHOW_CONFIG,
    Backend,
    Implementation,
    Shape,
    json_option,
    name_option,
    require_setting,
)
from dpbench.options.types import (
    Choice,
    Count,
    FilePath,
    Gpus,
    Number,
    PositiveNumber,
    duration_of_at_least,
    expected_name,
)
from dpbench.specs.axes import COMPILE_MODES, OPTIMIZERS
from dpbench.specs.training import Balance, Evaluation, LastWindow, TrainingRun
from dpbench.specs.traits import IMPLEMENTATIONS
from dpbench.specs.workload import DTYPE_NAMES, LR_RULES

LEARNING_PANEL = "How it learns"
STEP_PANEL = "How a step is computed"
REPLICAS_PANEL = "Replicas and their collectives"
KEPT_PANEL = "Log and checkpoints"
PRESETS = ("torch-ddp",)
SHORTEST_TIMEOUT_SECONDS = 0.1
Positive = Annotated[float, PositiveNumber()]


def _dataset(value: Any) -> Any:
    from dpbench.data.registry import DATASETS, is_function

    if isinstance(value, str) and is_function(value):
        raise ValueError(
            f"a dataset of your own is for dpbench sweep; expected one of {', '.join(DATASETS)}"
        )
    if value not in DATASETS:
        raise ValueError(expected_name(value, DATASETS))
    return value


def _path_as_text(value: Any) -> Any:
    return fspath(value) if isinstance(value, PathLike) else value


def _output(help: str, name: str, *also: str) -> OptionInfo:
    """A flag that chooses what the command prints."""
    return OptionInfo(
        help, None, OUTPUT_PANEL, names=(name,), also=also, scope="call", in_python=False
    )


class WorkOptions(Options):
    """The model and the data."""

    arch: Annotated[str, OptionInfo(ARCH.help, "NAME")] = ARCHITECTURE
    input_shape: Annotated[
        Shape | None,
        OptionInfo("Shape of one sample, for an --arch that gives only a model.", "N,N"),
    ] = None
    data: Annotated[
        Annotated[str, BeforeValidator(_dataset)] | None,
        OptionInfo(
            "Dataset: a name from 'dpbench list'.", "NAME", default="the architecture's own"
        ),
    ] = None
    data_dir: Annotated[FilePath | None, OptionInfo(DATA_DIR.help, "PATH", scope="node")] = None
    download: Annotated[
        bool, OptionInfo("Download the MNIST files that --data-dir lacks.", scope="start")
    ] = False
    limit_train: Annotated[
        Count | None, OptionInfo("Train on the first N samples.", "N", default="all")
    ] = None
    epochs: Annotated[
        Count | None,
        OptionInfo("Passes over the training samples.", "N", default="10 on digits, else 5"),
    ] = None
    max_steps: Annotated[
        Count | None,
        OptionInfo(
            "Stop after this many optimizer steps in all; --resume goes on from there.",
            "N",
            default="after all epochs",
            scope="start",
        ),
    ] = None
    batch_size: Annotated[Count, OptionInfo("Samples per replica and micro-step.", "N")] = 64
    seed: Annotated[Number, OptionInfo("Seed for weights, sample order and dropout.", "N")] = 0


class StepOptions(Options):
    """Learning, and the computation of a step."""

    optimizer: Annotated[
        Annotated[str, Choice(OPTIMIZERS)],
        OptionInfo(
            "Optimizer; -fused and -foreach choose the kernels.",
            "NAME",
            LEARNING_PANEL,
            also=("--optimizers",),
        ),
    ] = "adadelta"
    lr: Annotated[Positive, OptionInfo("Learning rate.", "X", LEARNING_PANEL)] = 1.0
    gamma: Annotated[
        Positive | None,
        OptionInfo(
            "Multiply the learning rate by this after each epoch (StepLR).",
            "X",
            LEARNING_PANEL,
            default="0.85 on digits, else 0.7",
        ),
    ] = None
    lr_scaling: Annotated[
        Annotated[str, Choice(LR_RULES)],
        OptionInfo(
            "Scale --lr with the samples per optimizer step.", "none|linear|sqrt", LEARNING_PANEL
        ),
    ] = "none"
    lr_warmup: Annotated[
        Number,
        OptionInfo(
            "Optimizer steps over which the rate rises from --lr to the scaled one.",
            "STEPS",
            LEARNING_PANEL,
        ),
    ] = 0
    accumulate: Annotated[
        Count,
        OptionInfo(
            "Micro-batches per optimizer step (gradient accumulation).",
            "N",
            LEARNING_PANEL,
            also=("--grad-accum",),
        ),
    ] = 1
    last_window: Annotated[
        Annotated[LastWindow, Choice(get_args(LastWindow))],
        OptionInfo(
            "Step with too few micro-batches at the end of an epoch, or drop them.",
            "step|drop",
            LEARNING_PANEL,
        ),
    ] = "step"
    max_norm: Annotated[
        Positive | None, OptionInfo("Clip the gradient norm to this value.", "X", LEARNING_PANEL)
    ] = None
    dtype: Annotated[
        Annotated[str, Choice(DTYPE_NAMES)],
        OptionInfo(
            "Dtype of the forward pass (autocast); parameters stay f32.",
            "f32|bf16|f16|tf32",
            STEP_PANEL,
            also=("--dtypes",),
        ),
    ] = "f32"
    compile: Annotated[
        Annotated[str, Choice(COMPILE_MODES)],
        OptionInfo("Mode of torch.compile.", "|".join(COMPILE_MODES), STEP_PANEL),
    ] = "none"


class ReplicaOptions(Options):
    """The replicas, and how their gradients meet."""

    implementation: Annotated[
        Implementation,
        OptionInfo(
            "Implementation of data parallelism; dp and ddp are dpbench's own.",
            "NAME",
            REPLICAS_PANEL,
        ),
    ] = "ddp"
    backend: Annotated[
        Backend | None,
        OptionInfo(
            "Backend of the process group; cpu means shm.",
            "NAME",
            REPLICAS_PANEL,
            also=("--sync-backend",),
            default="nccl with CUDA, else gloo",
        ),
    ] = None
    gpus: Annotated[
        Gpus | None,
        OptionInfo(
            "Number of GPUs, or their ids (0,1), a replica on each; without CUDA, CPUs.",
            "N|I,J",
            REPLICAS_PANEL,
            also=("--group-size",),
            default="all GPUs; 1 without CUDA",
        ),
    ] = None
    threads: Annotated[
        Count | None,
        OptionInfo("CPU threads per replica.", "N", REPLICAS_PANEL, default="cores ÷ replicas"),
    ] = None
    oversubscribe: Annotated[
        bool, OptionInfo("Allow more replicas than cores or GPUs.", None, REPLICAS_PANEL)
    ] = False
    sync_every: Annotated[
        Count | None,
        OptionInfo(
            "Steps between parameter averages (local-sgd).", "N", REPLICAS_PANEL, default="1"
        ),
    ] = None
    bucket_cap_mb: Annotated[
        Annotated[float, PositiveNumber(most=1e6, unit="MiB")] | None,
        OptionInfo(
            "Bucket size in MiB (ddp, torch-ddp and its variants).",
            "X",
            REPLICAS_PANEL,
            default="1, then 25",
        ),
    ] = None
    balance: Annotated[
        Annotated[Balance, Choice(get_args(Balance))],
        OptionInfo(
            "Split batches equally, or by the speed of each rank in the epoch before.",
            "equal|speed",
            REPLICAS_PANEL,
        ),
    ] = "equal"
    timeout: Annotated[
        Annotated[float, duration_of_at_least(SHORTEST_TIMEOUT_SECONDS)],
        OptionInfo("Time that ranks wait for each other.", "TIME", REPLICAS_PANEL, default="120s"),
    ] = 120.0
    debug: Annotated[
        bool, OptionInfo("Make torch.distributed and NCCL log more.", None, REPLICAS_PANEL)
    ] = False


class WatchOptions(Options):
    """Loading, evaluation, logs and checkpoints."""

    prefetch: Annotated[
        Number,
        OptionInfo(
            "Optimizer steps whose batches a thread prepares ahead.",
            "N",
            KEPT_PANEL,
        ),
    ] = 0
    evaluate: Annotated[
        Annotated[Evaluation, Choice(get_args(Evaluation))] | None,
        OptionInfo(
            "Evaluate after each epoch on all ranks, on rank 0, or not at all.",
            "sharded|rank0|off",
            KEPT_PANEL,
            default="sharded",
        ),
    ] = None
    no_eval: Annotated[bool, OptionInfo("Same as --evaluate off.", None, KEPT_PANEL)] = False
    log_interval: Annotated[
        Count, OptionInfo("Optimizer steps between log lines.", "N", KEPT_PANEL)
    ] = 20
    check_sync_every: Annotated[
        Count | None,
        OptionInfo("Compare the parameters of all ranks every K optimizer steps.", "K", KEPT_PANEL),
    ] = None
    checkpoint: Annotated[
        FilePath | None,
        OptionInfo(
            "Also write each checkpoint to this one file, replacing it whole.",
            "FILE",
            KEPT_PANEL,
            scope="start",
        ),
    ] = None
    checkpoint_every: Annotated[
        Count | None,
        OptionInfo("Optimizer steps between checkpoints.", "N", KEPT_PANEL, default="an epoch"),
    ] = None
    max_checkpoints: Annotated[
        Count, OptionInfo("Checkpoints to keep: the latest N, and the best.", "N", KEPT_PANEL)
    ] = 10


class CallOptions(Options):
    """One call: its layers of options, its run folder and its output."""

    preset: Annotated[
        str | None,
        OptionInfo(f"Start from a preset: {', '.join(PRESETS)}.", "NAME", scope="call"),
    ] = None
    config: Annotated[FilePath | None, CONFIG] = None
    resume: Annotated[
        Annotated[str, BeforeValidator(_path_as_text)] | None,
        OptionInfo(
            "Resume a run, from a checkpoint, or (auto) the run of this training.",
            "auto|RUN|FILE",
            KEPT_PANEL,
            scope="call",
        ),
    ] = None
    name: Annotated[
        str | None, name_option("Name of the run folder.", "the time and the architecture")
    ] = None
    runs_dir: Annotated[
        FilePath, OptionInfo("Directory for run folders.", "DIR", OUTPUT_PANEL, scope="call")
    ] = Path("runs")
    show_config: Annotated[bool, SHOW_CONFIG] = False
    dry_run: Annotated[bool, _output("Print the size of a step and exit.", "--dry-run")] = False
    memory: Annotated[bool, _output("Print each rank's memory at the end.", "--memory")] = False
    as_json: Annotated[
        bool, json_option("Print the result as JSON on stdout, and everything else on stderr.")
    ] = False
    json_lines: Annotated[
        bool, _output("Print the log as JSON Lines on stdout.", "--json-lines")
    ] = False
    quiet: Annotated[bool, _output("Print only the result.", "--quiet", "-q")] = False
    local_rank: Annotated[
        str | None,
        OptionInfo(
            "Appended by torch.distributed.launch, and ignored: LOCAL_RANK says the same.",
            names=("--local-rank",),
            also=("--local_rank",),
            scope="call",
            in_python=False,
            hidden=True,
        ),
    ] = None


class TrainOptions(CallOptions, WatchOptions, ReplicaOptions, StepOptions, WorkOptions):
    """Every option of a training; None leaves it to dpbench, which decides by machine and data."""

    @property
    def architecture(self) -> str:
        """The name to load: --arch with --input-shape."""
        from dpbench.architecture import with_input_shape

        shape = self.input_shape
        return self.arch if shape is None else with_input_shape(self.arch, shape)

    @property
    def run(self) -> TrainingRun:
        """The part of a training that changes no parameter: logs, checkpoints, time limits."""
        return TrainingRun(
            evaluation="off" if self.no_eval else self.evaluate or "sharded",
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
                require_setting(field, asked, (self.implementation,), several=False)
        _refuse_if(
            self.backend is not None and IMPLEMENTATIONS[self.implementation].backend is not None,
            f"--backend {self.backend}: {self.implementation} has no choice of backend; leave "
            "--backend out, or take an implementation that has one, such as ddp",
            *("backend", "implementation"),
        )
        _refuse_if(
            self.no_eval and self.evaluate not in (None, "off"),
            f"got --evaluate {self.evaluate} and --no-eval, which means --evaluate off; give one "
            "of them",
            *("evaluate", "no_eval"),
        )
        _refuse_if(
            self.lr_warmup > 0 and self.lr_scaling == "none",
            f"--lr-warmup {self.lr_warmup}: the rate rises from --lr to the scaled one, and with "
            "--lr-scaling none they are the same; add --lr-scaling linear or sqrt",
            *("lr_warmup", "lr_scaling"),
        )
        # Checked now, as the first checkpoint is only written after an epoch.
        if (path := self.checkpoint) is not None:
            _refuse_if(
                path.is_dir(),
                f"--checkpoint {path} is a folder; expected the name of a file",
                "checkpoint",
            )
            _refuse_if(
                not path.parent.is_dir(),
                f"--checkpoint {path}: there is no folder {path.parent}; make it",
                "checkpoint",
            )
        _refuse_if(
            self.download and (self.data != "mnist" or self.data_dir is None),
            "--download fetches MNIST; it needs --data mnist, and --data-dir with the folder to "
            "download to",
            *("download", "data", "data_dir"),
        )
        return self


def _refuse_if(wrong: bool, message: str, *about: str) -> None:
    if wrong:
        raise UsageError(message, about=about)
