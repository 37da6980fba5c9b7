"""The options of `dpbench train`, each declared once."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, get_args

from dpbench.errors import UsageError
from dpbench.run import presets
from dpbench.run.devices import GpuNumbers
from dpbench.run.shared_options import STAGED_BACKEND, GridOptions
from dpbench.settings import (
    AUTO,
    Auto,
    Choice,
    Flag,
    Kind,
    Parsed,
    PathName,
    PositiveNumber,
    Setting,
    Text,
    WholeNumber,
    settings_of,
)
from dpbench.specs import KEEP, SETTINGS, WorkloadSpec
from dpbench.specs.learning_rate import RULES
from dpbench.specs.training import Balance, Evaluation, LastWindow, TrainingRun
from dpbench.traits import IMPLEMENTATIONS, PROCESS_GROUP_BACKENDS, TRAINABLE, names_for_help
from dpbench.values import duration_seconds, known_name, positive_float

LEARNING = "How it learns"
COMPUTED = "How a step is computed"
REPLICAS = "Replicas and their collectives"
KEPT = "Log and checkpoints"
OUTPUT = "Run folder and output"
SHORTEST_TIMEOUT_SECONDS = 0.1
COUNT = WholeNumber(least=1)
GRID = settings_of(GridOptions)
"""Options of a sweep."""


def _option(option: str, kind: Kind, help: str, panel: str | None = None, **more: Any) -> Setting:
    names = (option, *more.pop("also", ()))
    return Setting(options=names, kind=kind, help=help, panel=panel, **more)


def _flag(option: str, help: str, panel: str | None, **more: Any) -> Setting:
    return _option(option, Flag(), help, panel, **more)


def _one_of(option: str, names: Collection[str], help: str, panel: str, **more: Any) -> Setting:
    return _option(option, Choice(names), help, panel, **{"metavar": "|".join(names), **more})


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
    """What is trained, and on what."""

    arch: Annotated[str, replace(GRID["arch"], panel=None)] = "mnist_cnn"
    input_shape: Annotated[
        str | None,
        _option(
            "--input-shape",
            Text(),
            "Shape of a sample, for an --arch that gives only a model.",
            metavar="N,N",
        ),
    ] = None
    data: Annotated[
        str | Auto,
        _option(
            "--data",
            Parsed(_dataset),
            "digits, mnist, iris, wine, breast_cancer, diabetes, text or synthetic.",
            metavar="NAME",
            complete=GRID["data"].complete,
            default_text="the architecture's own",
        ),
    ] = AUTO
    data_dir: Annotated[
        str | None,
        _option(
            "--data-dir", Text(), "Folder with the MNIST files, or a text file.", metavar="PATH"
        ),
    ] = None
    download: Annotated[
        bool, _flag("--download", "Fetch the files of MNIST that --data-dir lacks.", None)
    ] = False
    limit_train: Annotated[
        int | None,
        _option(
            "--limit-train",
            COUNT,
            "Train on the first N samples.",
            metavar="N",
            default_text="all",
        ),
    ] = None
    epochs: Annotated[
        int | Auto,
        _option(
            "--epochs",
            COUNT,
            "Passes over the training samples.",
            metavar="N",
            default_text="10 on digits, else 5",
        ),
    ] = AUTO
    max_steps: Annotated[
        int | None,
        _option(
            "--max-steps",
            COUNT,
            "Stop after N optimizer steps in all; --resume goes on from there.",
            metavar="N",
            default_text="after all epochs",
        ),
    ] = None
    batch_size: Annotated[
        int, _option("--batch-size", COUNT, "Samples per replica and micro-step.", metavar="N")
    ] = 64
    seed: Annotated[
        int,
        _option(
            "--seed", WholeNumber(), "Seed for weights, sample order and dropout.", metavar="N"
        ),
    ] = 0


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """How it learns, and how a step is computed."""

    optimizer: Annotated[
        str,
        _of_a_trial(
            "optimizer",
            "--optimizer",
            LEARNING,
            metavar="NAME",
            help="adadelta, adam, adamw or sgd.",
        ),
    ] = "adadelta"
    lr: Annotated[
        float, _option("--lr", PositiveNumber(), "The learning rate.", LEARNING, metavar="X")
    ] = 1.0
    gamma: Annotated[
        float | Auto,
        _option(
            "--gamma",
            PositiveNumber(),
            "Multiply the learning rate by this after each epoch (StepLR).",
            LEARNING,
            metavar="X",
            default_text="0.85 on digits, else 0.7",
        ),
    ] = AUTO
    lr_scaling: Annotated[
        str,
        _one_of(
            "--lr-scaling",
            tuple(RULES),
            "How --lr follows the samples behind an optimizer step ÷ --batch-size.",
            LEARNING,
        ),
    ] = "none"
    lr_warmup: Annotated[
        int,
        _option(
            "--lr-warmup",
            WholeNumber(),
            "Optimizer steps in which the rate rises from --lr to the scaled one.",
            LEARNING,
            metavar="STEPS",
        ),
    ] = 0
    accumulate: Annotated[
        int,
        _option(
            "--accumulate",
            COUNT,
            "Micro-steps per optimizer step; gradients are reduced once.",
            LEARNING,
            also=("--grad-accum",),
            metavar="N",
        ),
    ] = 1
    last_window: Annotated[
        LastWindow,
        _one_of(
            "--last-window",
            get_args(LastWindow),
            "What becomes of fewer micro-steps than --accumulate at the end of an epoch.",
            LEARNING,
        ),
    ] = "step"
    dtype: Annotated[
        str,
        _of_a_trial(
            "dtype",
            "--dtype",
            COMPUTED,
            metavar="f32|bf16|f16|tf32",
            help="Dtype of the forward pass (autocast); parameters stay f32. f16 and tf32 need "
            "CUDA.",
        ),
    ] = "f32"
    compile: Annotated[
        str,
        _of_a_trial(
            "compile",
            "--compile",
            COMPUTED,
            metavar="none|default|reduce-overhead|max-autotune",
            help="Mode of torch.compile.",
        ),
    ] = "none"
    channels_last: Annotated[
        bool, _of_a_trial("channels_last", "--channels-last", COMPUTED, metavar="no|yes")
    ] = False
    checkpoint_activations: Annotated[
        bool,
        _of_a_trial(
            "checkpoint_activations", "--checkpoint-activations", COMPUTED, metavar="no|yes"
        ),
    ] = False
    max_norm: Annotated[
        float | None,
        _option(
            "--max-norm",
            PositiveNumber(),
            "Clip the gradient norm to this value.",
            LEARNING,
            metavar="X",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ReplicaOptions:
    """Which replicas there are, and how their gradients meet."""

    implementation: Annotated[
        str,
        _one_of(
            "--implementation",
            tuple(IMPLEMENTATIONS),
            f"One of {names_for_help(TRAINABLE)}.",
            REPLICAS,
            metavar="NAME",
        ),
    ] = "ddp"
    backend: Annotated[
        str | Auto,
        _option(
            "--backend",
            Choice(PROCESS_GROUP_BACKENDS, also=(STAGED_BACKEND,)),
            "gloo, nccl or shm.",
            REPLICAS,
            metavar="NAME",
            default_text="nccl with CUDA, else gloo",
        ),
    ] = AUTO
    sync_backend: Annotated[
        str | None,
        _option(
            "--sync-backend",
            Choice(PROCESS_GROUP_BACKENDS, also=(STAGED_BACKEND,)),
            "Another name for --backend; cpu means shm.",
            REPLICAS,
            metavar="NAME",
        ),
    ] = None
    gpus: Annotated[
        int | tuple[int, ...] | Auto,
        _option(
            "--gpus",
            GpuNumbers(),
            "How many GPUs, or which (0,1), a replica on each. Without CUDA: CPU replicas.",
            REPLICAS,
            also=("--group-size",),
            is_ids=True,
            metavar="N|I,J",
            default_text="all GPUs; 1 without CUDA",
        ),
    ] = AUTO
    threads: Annotated[
        int | Auto,
        _option(
            "--threads",
            COUNT,
            "Threads per replica.",
            REPLICAS,
            metavar="N",
            default_text="cores ÷ replicas",
        ),
    ] = AUTO
    oversubscribe: Annotated[
        bool, _flag("--oversubscribe", "Allow more replicas than cores or GPUs.", REPLICAS)
    ] = False
    sync_every: Annotated[
        int | None,
        _of_a_trial("sync_every", "--sync-every", REPLICAS, metavar="N", default_text="1"),
    ] = None
    bucket_cap_mb: Annotated[
        float | None,
        _of_a_trial(
            "bucket_cap_mb",
            "--bucket-cap-mb",
            REPLICAS,
            metavar="X",
            help="Bucket size in MiB (ddp, torch-ddp and its kin).",
            default_text="1, then 25",
        ),
    ] = None
    balance: Annotated[
        Balance,
        _one_of(
            "--balance",
            get_args(Balance),
            "Equal parts of every batch, or by the speed of each rank in the epoch before.",
            REPLICAS,
        ),
    ] = "equal"
    shares: Annotated[
        tuple[float, ...] | None,
        _option(
            "--shares",
            Parsed(_shares),
            "Parts of every batch by rank, as in 2,1.",
            REPLICAS,
            metavar="X,Y",
        ),
    ] = None
    allocator: Annotated[
        str,
        _of_a_trial(
            "allocator",
            "--allocator",
            REPLICAS,
            metavar="keep|system",
            help="Keep freed host memory for the next step, or leave that to the C library.",
            default_text=None,
        ),
    ] = KEEP
    timeout: Annotated[
        float,
        _option(
            "--timeout",
            Parsed(_timeout),
            "How long ranks wait for each other: seconds, or 90s, 5m.",
            REPLICAS,
            metavar="TIME",
            typed_default="120s",
        ),
    ] = 120.0
    debug: Annotated[
        bool, _flag("--debug", "Let torch.distributed and NCCL say more.", REPLICAS)
    ] = False


@dataclass(frozen=True, kw_only=True)
class WatchOptions:
    """What is said and kept meanwhile."""

    prefetch: Annotated[
        int,
        _option(
            "--prefetch",
            WholeNumber(),
            "Windows (the batches of one optimizer step) that a thread makes ahead.",
            KEPT,
            metavar="N",
        ),
    ] = 0
    evaluate: Annotated[
        Evaluation | None,
        _one_of(
            "--evaluate",
            get_args(Evaluation),
            "Who evaluates the test samples after each epoch; the numbers are the same.",
            KEPT,
            default_text="sharded",
        ),
    ] = None
    no_eval: Annotated[bool, _flag("--no-eval", "The same as --evaluate off.", KEPT)] = False
    log_interval: Annotated[
        int,
        _option("--log-interval", COUNT, "Optimizer steps between two lines.", KEPT, metavar="N"),
    ] = 20
    check_sync_every: Annotated[
        int | None,
        _option(
            "--check-sync-every",
            COUNT,
            "Compare the parameters of all ranks every K optimizer steps.",
            KEPT,
            metavar="K",
        ),
    ] = None
    checkpoint: Annotated[
        str | None,
        _option(
            "--checkpoint",
            Text(),
            "Also write each checkpoint to this one file, replaced whole.",
            KEPT,
            metavar="FILE",
        ),
    ] = None
    checkpoint_every: Annotated[
        int | None,
        _option(
            "--checkpoint-every",
            COUNT,
            "Optimizer steps between two checkpoints.",
            KEPT,
            metavar="N",
            default_text="an epoch",
        ),
    ] = None
    max_checkpoints: Annotated[
        int,
        _option("--max-checkpoints", COUNT, "Keep the latest N, and the best.", KEPT, metavar="N"),
    ] = 10


@dataclass(frozen=True, kw_only=True)
class TrainOptions(WatchOptions, ReplicaOptions, StepOptions, WorkOptions):
    """Every option that a config file or the run to resume may hold, with its value."""

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
        """What is watched over, which changes no parameter."""
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


def _output(option: str, help: str, argument: str | None = None, also: str = "") -> Setting:
    names = (option, also) if also else (option,)
    return Setting(options=names, kind=Flag(), panel=OUTPUT, help=help, argument=argument)


@dataclass(frozen=True, kw_only=True)
class TrainCommand(TrainOptions):
    """The same with what belongs to one call: places of files, and what is printed."""

    preset: Annotated[
        str | None,
        _option(
            "--preset",
            Text(),
            "Options for a purpose: torch-ddp.",
            metavar="NAME",
            complete=presets.training_names,
        ),
    ] = None
    config: Annotated[
        Path | None,
        _option(
            "--config",
            PathName(),
            "Options from a YAML or TOML file; command-line options override it.",
            also=("-f",),
            metavar="FILE",
        ),
    ] = None
    resume: Annotated[
        str | None,
        _option(
            "--resume",
            Text(),
            "Go on with a run, from a checkpoint, or (auto) with the run of this training.",
            KEPT,
            metavar="auto|RUN|FILE",
        ),
    ] = None
    name: Annotated[
        str | None,
        _option(
            "--name",
            Text(),
            "Folder of this run.",
            OUTPUT,
            metavar="NAME",
            default_text="the time and the architecture",
        ),
    ] = None
    runs_dir: Annotated[
        Path, _option("--runs-dir", PathName(), "Folder of all runs.", OUTPUT, metavar="DIR")
    ] = Path("runs")
    show_config: Annotated[
        bool, _output("--show-config", "Print all options as YAML and exit.")
    ] = False
    dry_run: Annotated[bool, _output("--dry-run", "Print the size of a step and exit.")] = False
    memory: Annotated[bool, _output("--memory", "Print each rank's memory at the end.")] = False
    json_result: Annotated[
        bool,
        _output("--json", "The result as JSON on stdout, all else on stderr.", "json_result"),
    ] = False
    json_lines: Annotated[bool, _output("--json-lines", "The log as JSON Lines on stdout.")] = False
    quiet: Annotated[bool, _output("--quiet", "Only the result.", also="-q")] = False
    seq_len: Annotated[
        str | None,
        _option(
            "--seq-len",
            Text(),
            "What other programs call an option of the architecture here.",
            also=("--seq-length", "--sequence-length"),
            hidden=True,
        ),
    ] = None
    local_rank: Annotated[
        str | None,
        _option(
            "--local-rank",
            Text(),
            "What torch.distributed.launch adds; the variable of this name says the same.",
            also=("--local_rank",),
            hidden=True,
        ),
    ] = None
