"""Options that several commands have: models to inherit from, and single declarations."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator

from dpbench.errors import UsageError
from dpbench.options.bridge import OptionInfo, Options
from dpbench.options.types import (
    Choice,
    CommaList,
    Count,
    FilePath,
    Gpus,
    Kind,
    WholeNumber,
    expected_name,
)
from dpbench.specs import MOST_REPETITIONS
from dpbench.specs.traits import IMPLEMENTATIONS, PROCESS_GROUP_BACKENDS

TRIAL_PANEL = "Settings of every trial"
MACHINE_PANEL = "Machine"
NODES_PANEL = "Several nodes"
OUTPUT_PANEL = "Results and output"
ROWS_PANEL = "Which rows"
LARGEST_BATCH = "max"
"""The word for the largest batch size that fits."""
ARCHITECTURE = "mnist_cnn"
"""The default architecture."""

Repetitions = Annotated[int, WholeNumber(least=1, most=MOST_REPETITIONS)]
Implementation = Annotated[str, Choice(tuple(IMPLEMENTATIONS))]
Backend = Annotated[str, Choice(PROCESS_GROUP_BACKENDS, hidden={"cpu": "shm"})]
"""A backend with a process group; "cpu" is the name in other tools for staging through the host."""
BatchSize = Annotated[int | str, WholeNumber(least=1, word=LARGEST_BATCH)]
ARCH = OptionInfo(
    "Model to train: a name from 'dpbench list', file.py:function or timm:NAME.",
    "NAME",
    TRIAL_PANEL,
)
CONFIG = OptionInfo(
    "Read options from a TOML or YAML file; the command line overrides it.",
    "FILE",
    names=("--config",),
    also=("-f",),
    scope="call",
)
IMPLEMENTATIONS_OPTION = OptionInfo(
    "Implementations to compare; dp and ddp are dpbench's own.",
    "A,B",
    also=("--implementation",),
    default="dp,ddp,torch-ddp,single, and independent at the largest group size",
)
BACKENDS = OptionInfo(
    "Backends of the process group; cpu means shm.",
    "A,B",
    also=("--backend", "--sync-backend"),
    default="nccl with CUDA, else gloo",
)
BATCH_SIZES = OptionInfo(
    "Samples per replica (per group with --scaling strong); max: the most that fit.",
    "N,N",
    also=("--batch-size",),
)
GROUP_SIZES = OptionInfo(
    "Numbers of replicas to measure.",
    "N,N",
    also=("--group-size",),
    default="1 to --gpus; above 4: 1, 2, 4, … and all",
)
THREADS = OptionInfo(
    "CPU threads per replica, the same at every group size.",
    "N",
    MACHINE_PANEL,
    default="cores ÷ largest group",
)
DATA_DIR = OptionInfo(
    "Folder with the MNIST files, or a text file.", "PATH", TRIAL_PANEL, scope="node"
)
SHOW_CONFIG = OptionInfo(
    "Print all options as YAML and exit.", None, OUTPUT_PANEL, scope="call", in_python=False
)
CHARTS = OptionInfo(
    "Draw the charts of the report.", None, OUTPUT_PANEL, names=("--charts/--no-charts",)
)


def name_option(help: str, default: str) -> OptionInfo:
    """The option for the name of a results folder."""
    return OptionInfo(help, "NAME", OUTPUT_PANEL, default=default, scope="call")


def json_option(help: str) -> OptionInfo:
    """The option --json, whose field has another name, as pydantic's models have a `json`."""
    return OptionInfo(help, None, OUTPUT_PANEL, names=("--json",), scope="call", in_python=False)


def _dataset(value: Any) -> Any:
    from dpbench.data.registry import DATASETS, is_function

    name = value.strip() if isinstance(value, str) else value
    if not isinstance(name, str) or not (is_function(name) or name in DATASETS):
        raise ValueError(expected_name(name, DATASETS))
    return name


Dataset = Annotated[str, BeforeValidator(_dataset)]
"""A dataset of dpbench's, or "file.py:function" of the user's."""


class _Shape(Kind):
    schema = {"type": "string"}  # noqa: RUF012 - read only

    def parse(self, value: Any) -> str:
        items = value if isinstance(value, list | tuple) else str(value).split(",")
        try:
            sizes = [WholeNumber(least=1).parse(one) for one in items]
        except ValueError:
            raise ValueError("expected sizes with commas between them, as in 3,32,32") from None
        return ",".join(map(str, sizes))


Shape = Annotated[str, _Shape()]


class GridOptions(Options):
    """The measured rows and their work, but for the architecture."""

    implementations: Annotated[CommaList[Implementation] | None, IMPLEMENTATIONS_OPTION] = None
    backends: Annotated[CommaList[Backend] | None, BACKENDS] = None
    batch_sizes: Annotated[CommaList[BatchSize], BATCH_SIZES] = (32, 64, 128)
    group_sizes: Annotated[CommaList[Count] | None, GROUP_SIZES] = None
    input_shape: Annotated[
        Shape | None,
        OptionInfo(
            "Shape of one sample, for an --arch that gives only a model.", "N,N", TRIAL_PANEL
        ),
    ] = None
    step: Annotated[
        str | None,
        OptionInfo(
            "Your own training step: file.py:function or package.module:function.",
            "FILE:NAME",
            TRIAL_PANEL,
            default="dpbench's",
        ),
    ] = None
    data: Annotated[
        Dataset | None,
        OptionInfo(
            "Dataset: a name from 'dpbench list', or file.py:function that returns one.",
            "NAME",
            TRIAL_PANEL,
            default="the architecture's own",
        ),
    ] = None
    data_dir: Annotated[FilePath | None, DATA_DIR] = None


class MachineOptions(Options):
    """The part of this machine that is used."""

    gpus: Annotated[
        Gpus | None,
        OptionInfo(
            "Number of GPUs, or their ids (0,1); without CUDA, CPU replicas.",
            "N|I,J",
            MACHINE_PANEL,
            default="all GPUs; without CUDA, one replica a core",
            scope="node",
        ),
    ] = None
    oversubscribe: Annotated[
        bool, OptionInfo("Allow more replicas than cores or GPUs.", None, MACHINE_PANEL)
    ] = False


class FolderOptions(Options):
    """Folder for the results, and how much is printed meanwhile."""

    results_dir: Annotated[
        FilePath, OptionInfo("Directory for results folders.", "DIR", OUTPUT_PANEL, scope="call")
    ] = Path("results")
    quiet: Annotated[
        bool,
        OptionInfo(
            "Show no progress.",
            None,
            OUTPUT_PANEL,
            names=("--quiet",),
            also=("-q",),
            scope="call",
            in_python=False,
        ),
    ] = False


class NodeOptions(Options):
    """The nodes that a sweep runs on. Python calls have none of these options."""

    nnodes: Annotated[
        str | None,
        OptionInfo(
            "Number of nodes; run the same command on each. --gpus is per node.",
            "N",
            NODES_PANEL,
            scope="node",
            in_python=False,
        ),
    ] = None
    node_rank: Annotated[
        str | None,
        OptionInfo(
            "Rank of this node, from 0; node 0 plans, records and reports.",
            "N",
            NODES_PANEL,
            scope="call",
            in_python=False,
        ),
    ] = None
    rdzv_endpoint: Annotated[
        str | None,
        OptionInfo(
            "Address where node 0 listens and the others join.",
            "HOST:PORT",
            NODES_PANEL,
            scope="node",
            in_python=False,
        ),
    ] = None
    token_file: Annotated[
        str | None,
        OptionInfo(
            "File with the token that all nodes share; only you may read it.",
            "FILE",
            NODES_PANEL,
            default="DPBENCH_TOKEN; node 0 makes one and prints it",
            scope="call",
            in_python=False,
        ),
    ] = None


class RowFilter(Options):
    """The rows of results to keep; None for all."""

    implementations: Annotated[
        CommaList[str] | None,
        OptionInfo(
            "Show only these implementations.", "A,B", ROWS_PANEL, also=("--implementation",)
        ),
    ] = None
    backends: Annotated[
        CommaList[str] | None,
        OptionInfo("Show only these backends.", "A,B", ROWS_PANEL, also=("--backend",)),
    ] = None
    group_sizes: Annotated[
        CommaList[Count] | None,
        OptionInfo(
            "Show only these numbers of replicas.", "N,N", ROWS_PANEL, also=("--group-size",)
        ),
    ] = None
    batch_sizes: Annotated[
        CommaList[Count] | None,
        OptionInfo("Show only these batch sizes.", "N,N", ROWS_PANEL, also=("--batch-size",)),
    ] = None

    def passes(self, row: Any) -> bool:
        """Whether a row of results is one of those."""
        values = row_values(row)
        wanted = {name: getattr(self, name) for name in values}
        return all(wanted[name] is None or values[name] in wanted[name] for name in values)


def row_values(row: Any) -> dict[str, Any]:
    """What a row of results has of the fields of a RowFilter."""
    return {
        "implementations": row.implementation.partition("(")[0],  # local-sgd of "local-sgd(4)"
        "backends": row.backend,
        "group_sizes": row.group_size,
        "batch_sizes": row.batch_size,
    }


def require_setting(
    field: str, asked: str, implementations: Collection[str], *, several: bool
) -> None:
    """Raises UsageError for a setting that none of the implementations has.

    `asked` is its option with the value; `several` whether the command takes more than one
    implementation.
    """
    having = [name for name, traits in IMPLEMENTATIONS.items() if traits.has_setting(field)]
    if {*having} & {*implementations}:
        return
    name, _, _ = asked.partition(" ")
    chosen, remedy = ("implementations", "add") if several else ("implementation", "take")
    raise UsageError(
        f"{asked}: it is an option of {', '.join(having)}, but --{chosen} "
        f"{'are' if several else 'is'} {', '.join(implementations)}; {remedy} "
        f"{having[0] if len(having) == 1 else 'one of them'}, or leave {name} out",
        about=(name.removeprefix("--").replace("-", "_"), chosen),
    )
