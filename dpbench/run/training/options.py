"""The options of `dpbench train`, each declared once."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, get_args

from dpbench.errors import UsageError
from dpbench.run.shared_options import (
    ARCH_OPTION,
    ARCHITECTURE,
    STAGED_BACKEND,
    GridOptions,
    MachineOptions,
    flag,
    gpu_numbers,
    option,
)
from dpbench.specs import KEEP, SETTINGS, WorkloadSpec
from dpbench.specs.settings import (
    AUTO,
    Auto,
    Choice,
    Parsed,
    PositiveNumber,
    Setting,
    Text,
    WholeNumber,
    settings_of,
)
from dpbench.specs.training import Balance, Evaluation, LastWindow, TrainingRun
from dpbench.specs.traits import IMPLEMENTATIONS, PROCESS_GROUP_BACKENDS, TRAINABLE
from dpbench.specs.workload import LR_RULES
from dpbench.values import duration_seconds, known_name, positive_float

LEARNING_PANEL = "How it learns"
COMPUTED_PANEL = "How a step is computed"
REPLICAS_PANEL = "Replicas and their collectives"
KEPT_PANEL = "Log and checkpoints"
SHORTEST_TIMEOUT_SECONDS = 0.1
COUNT = WholeNumber(least=1)
GRID = settings_of(GridOptions)
"""Options of a sweep."""


def _one_of(name: str, names: Collection[str], help: str, panel: str, **more: Any) -> Setting:
    return option(name, Choice(names), help, panel, **{"metavar": "|".join(names), **more})


def _of_a_trial(field: str, option: str, panel: str, **more: Any) -> Setting:
    """An option whose values are those of a sweep's setting."""
    return replace(SETTINGS[field], options=(option,), none=None, panel=panel, **more)


def _dataset(option: str, text: str) -> str:
    from dpbench.data.registry import DATASETS, is_function

    if is_function(text):
        raise UsageError(
            f"{option} {text}: a dataset of your own is for dpbench sweep; expected one of "
            f"{', '.join(DATASETS)}"
        )
    return known_name(option, text, DATASETS)


def _shares(option: str, text: str) -> tuple[float, ...]:
    if not text.strip():
        raise UsageError(f"{option} is empty; expected one number for each process, as in 2,1")
    return tuple(positive_float(option, token) for token in text.split(","))


def _timeout(option: str, text: str) -> float:
    seconds = duration_seconds(option, text)
    if seconds < SHORTEST_TIMEOUT_SECONDS:
        raise UsageError(
            f"{option}: {text} is shorter than ranks need to meet; "
            f"expected at least {SHORTEST_TIMEOUT_SECONDS:g} s"
        )
    return seconds


@dataclass(frozen=True, kw_only=True)
class WorkOptions:
    """Options of the model and the data."""

    arch: Annotated[str, replace(ARCH_OPTION, panel=None)] = ARCHITECTURE
    input_shape: Annotated[str | None, replace(GRID["input_shape"], panel=None)] = None
    data: Annotated[
        str | Auto,
        option(
            "--data",
            Parsed(_dataset),
            "Dataset: a name from 'dpbench list'.",
            decides=("dataset",),
            metavar="NAME",
            complete=GRID["data"].complete,
            default_text="the architecture's own",
            common=True,
            elsewhere="--dataset",
        ),
    ] = AUTO
    # Text, as rank 0 sends it to other hosts, whose paths are their own.
    data_dir: Annotated[str | None, replace(GRID["data_dir"], kind=Text(), panel=None)] = None
    download: Annotated[
        bool,
        flag("--download", "Download the MNIST files that --data-dir lacks.", scope="start"),
    ] = False
    limit_train: Annotated[
        int | None,
        option(
            "--limit-train",
            COUNT,
            "Train on the first N samples.",
            decides=("train_samples",),
            metavar="N",
            default_text="all",
        ),
    ] = None
    epochs: Annotated[
        int | Auto,
        option(
            "--epochs",
            COUNT,
            "Passes over the training samples.",
            metavar="N",
            default_text="10 on digits, else 5",
            common=True,
            elsewhere="--num-epochs -e",
        ),
    ] = AUTO
    max_steps: Annotated[
        int | None,
        option(
            "--max-steps",
            COUNT,
            "Stop after this many optimizer steps in all; --resume goes on from there.",
            scope="start",
            metavar="N",
            default_text="after all epochs",
        ),
    ] = None
    batch_size: Annotated[
        int,
        option(
            "--batch-size",
            COUNT,
            "Samples per replica and micro-step.",
            metavar="N",
            common=True,
            elsewhere="--batch-sizes --batch --bs -b",
        ),
    ] = 64
    seed: Annotated[
        int,
        option("--seed", WholeNumber(), "Seed for weights, sample order and dropout.", metavar="N"),
    ] = 0


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """Options of learning, and of the computation of a step."""

    optimizer: Annotated[
        str,
        _of_a_trial(
            "optimizer",
            "--optimizer",
            LEARNING_PANEL,
            metavar="NAME",
            help="Optimizer; -fused and -foreach choose the kernels.",
            common=True,
            elsewhere="--optimizers --optim --opt",
        ),
    ] = "adadelta"
    lr: Annotated[
        float,
        option(
            "--lr",
            PositiveNumber(),
            "Learning rate.",
            LEARNING_PANEL,
            decides=("learning_rate",),
            metavar="X",
            common=True,
            elsewhere="--learning-rate --learning_rate",
        ),
    ] = 1.0
    gamma: Annotated[
        float | Auto,
        option(
            "--gamma",
            PositiveNumber(),
            "Multiply the learning rate by this after each epoch (StepLR).",
            LEARNING_PANEL,
            metavar="X",
            default_text="0.85 on digits, else 0.7",
        ),
    ] = AUTO
    lr_scaling: Annotated[
        str,
        _one_of(
            "--lr-scaling",
            tuple(LR_RULES),
            "Scale --lr with the samples per optimizer step.",
            LEARNING_PANEL,
            decides=("learning_rate_rule",),
        ),
    ] = "none"
    lr_warmup: Annotated[
        int,
        option(
            "--lr-warmup",
            WholeNumber(),
            "Optimizer steps over which the rate rises from --lr to the scaled one.",
            LEARNING_PANEL,
            decides=("warmup_steps",),
            metavar="STEPS",
        ),
    ] = 0
    accumulate: Annotated[
        int,
        option(
            "--accumulate",
            COUNT,
            "Micro-batches per optimizer step (gradient accumulation).",
            LEARNING_PANEL,
            decides=("accumulation_steps",),
            also=("--grad-accum",),
            metavar="N",
        ),
    ] = 1
    last_window: Annotated[
        LastWindow,
        _one_of(
            "--last-window",
            get_args(LastWindow),
            "Step with too few micro-batches at the end of an epoch, or drop them.",
            LEARNING_PANEL,
        ),
    ] = "step"
    dtype: Annotated[
        str,
        _of_a_trial(
            "dtype",
            "--dtype",
            COMPUTED_PANEL,
            metavar="f32|bf16|f16|tf32",
            help="Dtype of the forward pass (autocast); parameters stay f32.",
            common=True,
            elsewhere="--dtypes --amp --fp16 --bf16 --mixed-precision",
        ),
    ] = "f32"
    compile: Annotated[
        str,
        _of_a_trial(
            "compile",
            "--compile",
            COMPUTED_PANEL,
            metavar="none|default|reduce-overhead|max-autotune",
            help="Mode of torch.compile.",
        ),
    ] = "none"
    channels_last: Annotated[
        bool, _of_a_trial("channels_last", "--channels-last", COMPUTED_PANEL, metavar="no|yes")
    ] = False
    checkpoint_activations: Annotated[
        bool,
        _of_a_trial(
            "checkpoint_activations", "--checkpoint-activations", COMPUTED_PANEL, metavar="no|yes"
        ),
    ] = False
    max_norm: Annotated[
        float | None,
        option(
            "--max-norm",
            PositiveNumber(),
            "Clip the gradient norm to this value.",
            LEARNING_PANEL,
            metavar="X",
            elsewhere="--clip-grad --clip-grad-norm --max-grad-norm",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ReplicaOptions:
    """Options of the replicas, and of how their gradients meet."""

    implementation: Annotated[
        str,
        _one_of(
            "--implementation",
            tuple(IMPLEMENTATIONS),
            "Implementation of data parallelism; dp and ddp are dpbench's own.",
            REPLICAS_PANEL,
            complete=tuple(TRAINABLE),
            metavar="NAME",
            common=True,
            elsewhere="--implementations --impl",
        ),
    ] = "ddp"
    backend: Annotated[
        str | Auto,
        option(
            "--backend",
            Choice(PROCESS_GROUP_BACKENDS, also=(STAGED_BACKEND,)),
            "Backend of the process group.",
            REPLICAS_PANEL,
            metavar="NAME",
            default_text="nccl with CUDA, else gloo",
            common=True,
            elsewhere="--backends --dist-backend",
        ),
    ] = AUTO
    sync_backend: Annotated[
        str | None,
        option(
            "--sync-backend",
            Choice(PROCESS_GROUP_BACKENDS, also=(STAGED_BACKEND,)),
            "Alias of --backend; cpu means shm.",
            REPLICAS_PANEL,
            instead_of="backend",
            metavar="NAME",
        ),
    ] = None
    gpus: Annotated[
        int | tuple[int, ...] | Auto,
        option(
            "--gpus",
            Parsed(gpu_numbers),
            "Number of GPUs, or their ids (0,1), a replica on each; without CUDA, CPUs.",
            REPLICAS_PANEL,
            also=("--group-size",),
            decides=("group_size", "devices"),
            is_ids=True,
            metavar="N|I,J",
            default_text="all GPUs; 1 without CUDA",
            common=True,
            elsewhere="--device --num-gpus --ngpus --devices --nproc-per-node --world-size -g",
        ),
    ] = AUTO
    threads: Annotated[
        int | Auto,
        option(
            "--threads",
            COUNT,
            "CPU threads per replica.",
            REPLICAS_PANEL,
            decides=("threads_per_replica",),
            metavar="N",
            default_text="cores ÷ replicas",
        ),
    ] = AUTO
    oversubscribe: Annotated[
        bool, replace(settings_of(MachineOptions)["oversubscribe"], panel=REPLICAS_PANEL)
    ] = False
    sync_every: Annotated[
        int | None,
        _of_a_trial("sync_every", "--sync-every", REPLICAS_PANEL, metavar="N", default_text="1"),
    ] = None
    bucket_cap_mb: Annotated[
        float | None,
        _of_a_trial(
            "bucket_cap_mb",
            "--bucket-cap-mb",
            REPLICAS_PANEL,
            metavar="X",
            help="Bucket size in MiB (ddp, torch-ddp and its variants).",
            default_text="1, then 25",
        ),
    ] = None
    balance: Annotated[
        Balance,
        _one_of(
            "--balance",
            get_args(Balance),
            "Split batches equally, or by the speed of each rank in the epoch before.",
            REPLICAS_PANEL,
        ),
    ] = "equal"
    shares: Annotated[
        tuple[float, ...] | None,
        option(
            "--shares",
            Parsed(_shares),
            "Shares of every batch by rank, as in 2,1.",
            REPLICAS_PANEL,
            instead_of="balance",
            has_commas=True,
            metavar="X,Y",
        ),
    ] = None
    allocator: Annotated[
        str,
        _of_a_trial(
            "allocator",
            "--allocator",
            REPLICAS_PANEL,
            metavar="keep|system",
            help="Freed host memory: kept for the next step, or left to the C library.",
            default_text=None,
        ),
    ] = KEEP
    timeout: Annotated[
        float,
        option(
            "--timeout",
            Parsed(_timeout),
            "Time that ranks wait for each other.",
            REPLICAS_PANEL,
            metavar="TIME",
            typed_default="120s",
        ),
    ] = 120.0
    debug: Annotated[
        bool, flag("--debug", "Make torch.distributed and NCCL log more.", REPLICAS_PANEL)
    ] = False


@dataclass(frozen=True, kw_only=True)
class WatchOptions:
    """Options of loading, evaluation, logs and checkpoints."""

    prefetch: Annotated[
        int,
        option(
            "--prefetch",
            WholeNumber(),
            "Optimizer steps whose batches a thread prepares ahead.",
            KEPT_PANEL,
            metavar="N",
        ),
    ] = 0
    evaluate: Annotated[
        Evaluation | None,
        _one_of(
            "--evaluate",
            get_args(Evaluation),
            "Evaluate after each epoch on all ranks, on rank 0, or not at all.",
            KEPT_PANEL,
            default_text="sharded",
        ),
    ] = None
    no_eval: Annotated[
        bool, flag("--no-eval", "Same as --evaluate off.", KEPT_PANEL, instead_of="evaluate")
    ] = False
    log_interval: Annotated[
        int,
        option(
            "--log-interval",
            COUNT,
            "Optimizer steps between log lines.",
            KEPT_PANEL,
            metavar="N",
            elsewhere="--log-every --print-freq",
        ),
    ] = 20
    check_sync_every: Annotated[
        int | None,
        option(
            "--check-sync-every",
            COUNT,
            "Compare the parameters of all ranks every K optimizer steps.",
            KEPT_PANEL,
            metavar="K",
        ),
    ] = None
    checkpoint: Annotated[
        str | None,
        option(
            "--checkpoint",
            Text(),
            "Also write each checkpoint to this one file, replacing it whole.",
            KEPT_PANEL,
            scope="start",
            metavar="FILE",
        ),
    ] = None
    checkpoint_every: Annotated[
        int | None,
        option(
            "--checkpoint-every",
            COUNT,
            "Optimizer steps between checkpoints.",
            KEPT_PANEL,
            metavar="N",
            default_text="an epoch",
            common=True,
            elsewhere="--save-every --save-interval",
        ),
    ] = None
    max_checkpoints: Annotated[
        int,
        option(
            "--max-checkpoints",
            COUNT,
            "Checkpoints to keep: the latest N, and the best.",
            KEPT_PANEL,
            metavar="N",
        ),
    ] = 10


@dataclass(frozen=True, kw_only=True)
class TrainOptions(WatchOptions, ReplicaOptions, StepOptions, WorkOptions):
    """Every option that a config file may hold, with its value; the run to resume holds all but
    those of one start."""

    @property
    def architecture(self) -> str:
        """The name to load: --arch with --input-shape."""
        from dpbench.architecture import with_input_shape

        return (
            self.arch if self.input_shape is None else with_input_shape(self.arch, self.input_shape)
        )

    @property
    def process_backend(self) -> str | Auto:
        """The backend by whichever of its two options, and by its name here."""
        asked = self.backend if self.sync_backend is None else self.sync_backend
        return "shm" if asked == STAGED_BACKEND else asked

    @property
    def run(self) -> TrainingRun:
        """The part of a training that changes no parameter: logs, checkpoints, time limits."""
        return TrainingRun(
            evaluation="off" if self.no_eval else self.evaluate or "sharded",
            max_steps=self.max_steps,
            log_interval=self.log_interval,
            # Ranks may run elsewhere.
            checkpoint=None if self.checkpoint is None else str(Path(self.checkpoint).absolute()),
            checkpoint_every=self.checkpoint_every,
            max_checkpoints=self.max_checkpoints,
            prefetch=self.prefetch,
            check_sync_every=self.check_sync_every,
            timeout_seconds=self.timeout,
            allocator=self.allocator,
            debug=self.debug,
        )

    def workload(self, dataset: str) -> WorkloadSpec:
        """The work on a dataset, which --data or the architecture says."""
        return WorkloadSpec(
            architecture=self.architecture,
            dataset=dataset,
            optimizer=self.optimizer,
            dtype=self.dtype,
            compile=self.compile,
            channels_last=self.channels_last,
            checkpoint_activations=self.checkpoint_activations,
            learning_rate=self.lr,
            learning_rate_rule=self.lr_scaling,
            seed=self.seed,
        )
