"""Options that several commands have: models to inherit from, and single declarations."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from dpbench.data.registry import DATASETS, is_function
from dpbench.errors import UsageError, expected_name
from dpbench.options.bridge import Options, Scope, option
from dpbench.options.types import (
    Code,
    CodeList,
    CommaList,
    Count,
    FilePath,
    Gpus,
    one_of,
)
from dpbench.specs import MOST_REPETITIONS
from dpbench.specs.traits import BUILT_IN, IMPLEMENTATIONS, PROCESS_GROUP_BACKENDS
from dpbench.specs.workload import (
    COMPILE_MODES,
    DTYPE_NAMES,
    GRAPHED_MODES,
    LR_RULES,
    OPTIMIZERS,
)

# Panels of help, in the words of `option`; options without one are those that most people type.
setting = partial(option, panel="Settings")
data_option = partial(option, panel="Model and data")
measurement_option = partial(option, panel="Measurement")
machine_option = partial(option, panel="Machine")
output_option = partial(option, panel="Results and output")
printed = partial(option, False, panel="Results and output", scope="shell")
filter_option = partial(option, None, panel="Which rows")

LARGEST: Literal["max"] = "max"
"""The word for the largest batch size that fits, and for the largest group."""
ARCHITECTURE = "mnist_cnn"
"""The default architecture."""
HELP = {
    "arch": "Model: a name from 'dpbench list', or file.py:function.",
    "backends": "gloo, nccl, shm (alias: cpu), nccl-legacy or nccl2.",
    "gpus": "Number of GPUs, or ids (0,1); without CUDA, CPU replicas.",
    "threads": "CPU threads per replica.",
    "optimizer": "sgd, adam or adamw, also -fused or -foreach; adadelta, also -foreach.",
    "dtypes": "Dtype of the forward pass: f32, bf16, f16 or tf32.",
    "compile": "torch.compile: none, default, reduce-overhead, max-autotune.",
    "debug": "Enable debug logs of torch.distributed and NCCL.",
    "accumulate": "Micro-batches per optimizer step.",
    "sync_every": "Steps between parameter averages (local-sgd).",
    "lr_scaling": "Scale --lr with the samples per step: none, linear or sqrt.",
    "oversubscribe": "Allow more replicas than cores or GPUs.",
    "data_dir": "Folder with the MNIST files.",
}
"""Help of options that several commands have."""
USUAL_THREADS = "cores ÷ largest group"
USUAL_BACKEND = "nccl with CUDA, else gloo"
BATCH_NAMES = ("--batch-sizes", "--batch-size")
GROUP_NAMES = ("--group-sizes", "--group-size")

Repetitions = Annotated[int, Field(ge=1, le=MOST_REPETITIONS)]
Implementation = Annotated[str, one_of(tuple(BUILT_IN))]
MeasuredImplementation = Annotated[str, one_of(tuple(IMPLEMENTATIONS))]
"""An implementation of rows, of which `script` is a training script as it is."""
Backend = Annotated[str, one_of({**{b: b for b in PROCESS_GROUP_BACKENDS}, "cpu": "shm"})]
"""A backend with a process group; "cpu" is the name in other tools for staging through the host."""
Optimizer = Annotated[str, one_of(OPTIMIZERS)]
Dtype = Annotated[str, one_of(DTYPE_NAMES)]
CompileMode = Annotated[str, one_of(COMPILE_MODES)]
LrRule = Annotated[str, one_of(LR_RULES)]
Size = Count | Literal["max"]
StoredDataset = Annotated[str, one_of(tuple(DATASETS))]
"""A dataset of dpbench's."""


def _dataset(name: str) -> str:
    if not (is_function(name) or name in DATASETS):
        raise ValueError(expected_name(name, tuple(DATASETS)))
    return name


DatasetName = Annotated[Code, AfterValidator(_dataset)]
"""The same, or a user's "file.py:function"."""


def config_option(scope: Scope = "call") -> Any:
    """The option --config."""
    text = "Read options from a TOML or YAML file."
    return option(None, text, "FILE", names=("--config", "-f"), scope=scope)


def name_option(help: str, usual: str) -> Any:
    """The option for the name of a results folder."""
    return option(None, help, "NAME", usual=usual, scope="call")


def json_option(help: str = "Print JSON on stdout, the rest on stderr.") -> Any:
    """The option --json. Its field has another name, as pydantic's models have a `json`."""
    return option(False, help, names=("--json",), scope="shell")


def charts_option() -> Any:
    """The option --charts, or --no-charts."""
    return output_option(True, "Draw charts.", names=("--charts/--no-charts",))


def time_limit_option(of: str) -> Any:
    """The option --time-limit."""
    return measurement_option(300.0, f"Time limit {of}.", "TIME", usual="5m")


def results_argument(
    help: str = "Results folder, or a CSV file of results.", metavar: str = "PATH"
) -> Any:
    """The results that a command reads."""
    return option(None, help, metavar, usual="the latest in results/", argument=True)


def gpus_option(help: str = HELP["gpus"]) -> Any:
    """The option --gpus."""
    return option(None, help, "N|I,J", usual="all, or one per core")


class MeasuringOptions(Options):
    """What commands that measure have in common."""

    oversubscribe: bool = machine_option(False, HELP["oversubscribe"])
    results_dir: FilePath = output_option(
        Path("results"), "Directory for results folders.", "DIR", scope="call"
    )
    quiet: bool = printed("Show no progress.", names=("--quiet", "-q"))


class RowOptions(Options):
    """The measured rows, every combination of these, and their samples."""

    arch: CodeList = option((ARCHITECTURE,), HELP["arch"], "A,B")
    gpus: Gpus | None = gpus_option(
        "GPUs, or ids (0,1), of the largest group; without CUDA, CPU replicas."
    )
    implementations: CommaList[MeasuredImplementation] | None = option(
        None,
        "Implementations; see 'dpbench list implementations'.",
        "A,B",
        names=("--implementations", "--implementation"),
        usual="dp,ddp,torch-ddp,single, and independent at the largest group size",
    )
    backends: CommaList[Backend] | None = option(
        None,
        HELP["backends"],
        "A,B",
        names=("--backends", "--backend", "--sync-backend"),
        usual=USUAL_BACKEND,
    )
    batch_sizes: CommaList[Size] = option(
        (32, 64, 128), "Samples per replica; max: the largest that fits.", "N,N", names=BATCH_NAMES
    )
    group_sizes: CommaList[Size] | None = option(
        None,
        "Numbers of replicas to measure; max: all --gpus.",
        "N,N",
        names=GROUP_NAMES,
        usual="1 to --gpus; above 4: 1, 2, 4, …",
    )
    data: DatasetName | None = data_option(
        None,
        "Dataset: a name from 'dpbench list', or file.py:function.",
        "NAME",
        usual="the architecture's own",
    )
    data_dir: FilePath | None = data_option(None, HELP["data_dir"], "DIR")


class RowFilter(Options):
    """The rows of results to keep; None for all."""

    implementations: CommaList[str] | None = filter_option(
        "Show only these implementations.", "A,B", names=("--implementations", "--implementation")
    )
    backends: CommaList[str] | None = filter_option(
        "Show only these backends.", "A,B", names=("--backends", "--backend")
    )
    group_sizes: CommaList[Count] | None = filter_option(
        "Show only these numbers of replicas.", "N,N", names=GROUP_NAMES
    )
    batch_sizes: CommaList[Count] | None = filter_option(
        "Show only these batch sizes.", "N,N", names=BATCH_NAMES
    )

    def passes(self, row: Any) -> bool:
        """Whether a row of results is one of those."""
        values = row_values(row)
        wanted = {name: getattr(self, name) for name in values}
        return all(wanted[name] is None or values[name] in wanted[name] for name in values)


def row_values(row: Any) -> dict[str, Any]:
    """Values of a row of results for the fields of a RowFilter."""
    return {
        "implementations": row.implementation,
        "backends": row.backend,
        "group_sizes": row.group_size,
        "batch_sizes": row.batch_size,
    }


def refuse_if(wrong: bool, message: str, *about: str) -> None:
    """Raises UsageError that is about these options."""
    if wrong:
        raise UsageError(message, about=about)


def refuse_graphs_that_accumulate(modes: Collection[str], counts: Collection[int]) -> None:
    """Raises UsageError for micro-steps that a CUDA graph replays: each replay overwrites the
    gradients of the one before (pytorch issue 169545)."""
    graphed = [mode for mode in modes if mode in GRAPHED_MODES]
    several = [count for count in counts if count > 1]
    refuse_if(
        bool(graphed and several),
        f"--compile {','.join(graphed)} with --accumulate {','.join(map(str, several))}: CUDA "
        "graphs overwrite the gradients of earlier micro-batches; expected --compile default or "
        "none, or --accumulate 1",
        *("compile", "accumulate"),
    )


def require_setting(
    field: str, asked: str, implementations: Collection[str], *, chosen: str
) -> None:
    """Raises UsageError for a setting that none of the implementations has.

    `asked` is its option with the value; `chosen` the option that names the implementations.
    """
    having = [name for name, traits in IMPLEMENTATIONS.items() if traits.has_setting(field)]
    refuse_if(
        not {*having} & {*implementations},
        f"{asked}: expected --{chosen} with {' or '.join(having)}, got {','.join(implementations)}",
        *(field, chosen),
    )
