"""Parts that the options of several commands are composed of."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from dpbench.errors import UsageError
from dpbench.specs import MOST_REPETITIONS, SETTINGS
from dpbench.specs.settings import (
    AUTO,
    Auto,
    Choice,
    CountOr,
    Flag,
    Kind,
    Parsed,
    PathName,
    Setting,
    Text,
    WholeNumber,
)
from dpbench.specs.traits import IMPLEMENTATIONS, PROCESS_GROUP_BACKENDS
from dpbench.values import integer, known_name, positive_int

TRIAL_PANEL = "Settings of every trial"
MACHINE_PANEL = "Machine"
NODES_PANEL = "Several nodes"
OUTPUT_PANEL = "Results and output"
LARGEST_BATCH = "max"
"""The word for the largest batch size that fits."""
GROWING_STEPS = "auto"
"""The word for windows that grow until they are precise enough."""
REPETITIONS_KIND = WholeNumber(least=1, most=MOST_REPETITIONS)
STAGED_BACKEND = "cpu"
"""The name in other tools for gradients that are staged through the host."""


def _architectures() -> Collection[str]:
    from dpbench import architecture

    return architecture.names()


def _datasets() -> Collection[str]:
    from dpbench.data.registry import DATASETS

    return DATASETS


def dataset_name(option: str, token: str) -> str:
    """A dataset of dpbench's, or a function of the user's that is there; raises UsageError."""
    from dpbench.architecture import check_function
    from dpbench.data.registry import DATASETS, is_function

    name = token.strip()
    if not is_function(name):
        return known_name(option, name, DATASETS)
    check_function(name, "dataset")
    return name


def gpu_numbers(option: str, token: str) -> int | tuple[int, ...]:
    """A count of devices ("2"), or their numbers ("0,1"; a single one is written "0,")."""
    if "," not in token:
        return positive_int(option, token)
    tokens = token.removesuffix(",").split(",")
    if not all(one.strip() for one in tokens):
        raise UsageError(
            f"{option} {token!r} has an empty entry; expected a number or ids as in 0,1"
        )
    ids = [integer(option, one, least=0) for one in tokens]
    for number in ids:
        if ids.count(number) > 1:
            raise UsageError(f"{option} {token}: device {number} is listed twice; name each once")
    return tuple(ids)


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


def option(
    name: str,
    kind: Kind,
    help: str,
    panel: str | None = None,
    *,
    also: tuple[str, ...] = (),
    **more: Any,
) -> Setting:
    """Declares an option of a command; `also` has its further names."""
    return Setting(options=(name, *also), kind=kind, help=help, panel=panel, **more)


def flag(name: str, help: str, panel: str | None = None, **more: Any) -> Setting:
    """Declares an option without a value."""
    return option(name, Flag(), help, panel, **more)


IMPLEMENTATIONS_OPTION = option(
    "--implementations",
    Choice(tuple(IMPLEMENTATIONS)),
    "Implementations to compare; dp and ddp are dpbench's own.",
    also=("--implementation",),
    common=True,
    elsewhere="--impl --impls --strategy --strategies",
    several=True,
    metavar="A,B",
)
BATCH_SIZES_OPTION = option(
    "--batch-sizes",
    CountOr(LARGEST_BATCH, offers_word=False),
    "Samples per replica (per group with --scaling strong); max: the most that fit.",
    also=("--batch-size",),
    common=True,
    elsewhere="--batch --bs --batchsize --batch_size -b",
    several=True,
    metavar="N,N",
)
GROUP_SIZES_OPTION = option(
    "--group-sizes",
    WholeNumber(least=1),
    "Numbers of replicas to measure.",
    also=("--group-size",),
    common=True,
    elsewhere="--world-size --world_size --replicas --nproc",
    several=True,
    metavar="N,N",
    default_text="1, 2, 4, … up to --gpus",
)
BACKENDS_OPTION = option(
    "--backends",
    Choice(PROCESS_GROUP_BACKENDS, also=(STAGED_BACKEND,)),
    "Backends of the process group.",
    also=("--backend",),
    common=True,
    elsewhere="--dist-backend --comm-backend",
    several=True,
    metavar="A,B",
    default_text="nccl with CUDA, else gloo",
)

CONFIG_OPTION = option(
    "--config",
    PathName(),
    "Read options from a TOML or YAML file; the command line overrides it.",
    also=("-f",),
    scope="call",
    common=True,
    metavar="FILE",
)


def show_config_option(panel: str) -> Setting:
    """The option that prints all others as a file."""
    return flag(
        "--show-config",
        "Print all options as YAML and exit.",
        panel,
        scope="call",
        in_python=False,
    )


def name_option(help: str, panel: str, default_text: str, **more: Any) -> Setting:
    """The name of a folder of results."""
    return option(
        "--name",
        Text(),
        help,
        panel,
        scope="call",
        metavar="NAME",
        default_text=default_text,
        **more,
    )


def one_value(field: str, panel: str) -> Setting:
    """A setting of a trial as an option that takes one value."""
    return replace(SETTINGS[field], metavar="N", panel=panel)


@dataclass(frozen=True, kw_only=True)
class ThreadsOption:
    """Threads per replica, where all rows have the same."""

    threads: Annotated[int | Auto, one_value("threads_per_replica", MACHINE_PANEL)] = AUTO


ARCHITECTURE = "mnist_cnn"
"""The one that is trained unless another is asked for."""
ARCH_OPTION = replace(
    SETTINGS["architecture"],
    decides=("architecture",),
    metavar="NAME",
    complete=_architectures,
    panel=TRIAL_PANEL,
)


@dataclass(frozen=True, kw_only=True)
class ArchOption:
    """The architecture, where all rows have the same."""

    arch: Annotated[str, ARCH_OPTION] = ARCHITECTURE


@dataclass(frozen=True, kw_only=True)
class GridOptions:
    """Options of the measured rows and of their work."""

    input_shape: Annotated[
        str | None,
        option(
            "--input-shape",
            Text(),
            "Shape of one sample, for an --arch that gives only a model.",
            TRIAL_PANEL,
            has_commas=True,
            metavar="N,N",
        ),
    ] = None
    implementations: Annotated[tuple[str, ...], IMPLEMENTATIONS_OPTION] = ("dp", "ddp")
    backends: Annotated[tuple[str, ...] | Auto, BACKENDS_OPTION] = AUTO
    batch_sizes: Annotated[tuple[int | str, ...], BATCH_SIZES_OPTION] = (32, 64, 128)
    group_sizes: Annotated[tuple[int, ...] | Auto, GROUP_SIZES_OPTION] = AUTO
    step: Annotated[
        str | None,
        replace(SETTINGS["step"], panel=TRIAL_PANEL, none=None, default_text="dpbench's"),
    ] = None
    data: Annotated[
        str | Auto,
        option(
            "--data",
            Parsed(dataset_name),
            "Dataset: a name from 'dpbench list', or file.py:function that returns one.",
            TRIAL_PANEL,
            decides=("dataset",),
            elsewhere="--dataset --datasets",
            metavar="NAME",
            complete=_datasets,
            default_text="the architecture's own",
        ),
    ] = AUTO
    data_dir: Annotated[
        Path | None,
        option(
            "--data-dir",
            PathName(),
            "Folder with the MNIST files, or a text file.",
            TRIAL_PANEL,
            scope="node",
            metavar="PATH",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class MachineOptions:
    """Options of the part of this machine that is used."""

    gpus: Annotated[
        int | tuple[int, ...] | Auto,
        option(
            "--gpus",
            Parsed(gpu_numbers),
            "Number of GPUs, or their ids (0,1); without CUDA, CPU replicas.",
            MACHINE_PANEL,
            decides=("devices",),
            scope="node",
            common=True,
            elsewhere="--device --num-gpus --ngpus --devices --nproc-per-node -g",
            is_ids=True,
            metavar="N|I,J",
            default_text="all GPUs; without CUDA, one replica a core",
        ),
    ] = AUTO
    oversubscribe: Annotated[
        bool, flag("--oversubscribe", "Allow more replicas than cores or GPUs.", MACHINE_PANEL)
    ] = False


def _of_nodes(name: str, metavar: str, help: str, **more: Any) -> Setting:
    """An option of a sweep over several nodes, all of which are read together.

    Python calls have none of them: such a sweep is the same command on each node.
    """
    settings = {"scope": "node", "in_python": False, **more}
    return option(name, Text(), help, NODES_PANEL, metavar=metavar, **settings)


@dataclass(frozen=True, kw_only=True)
class NodeOptions:
    """Options of the nodes that a sweep runs on; None is an option that was left out."""

    nnodes: Annotated[
        str | None,
        _of_nodes(
            "--nnodes",
            "N",
            "Number of nodes; run the same command on each. --gpus is per node.",
            decides=("nodes",),
        ),
    ] = None
    node_rank: Annotated[
        str | None,
        _of_nodes(
            "--node-rank",
            "N",
            "Rank of this node, from 0; node 0 plans, records and reports.",
            scope="call",
        ),
    ] = None
    rdzv_endpoint: Annotated[
        str | None,
        _of_nodes(
            "--rdzv-endpoint",
            "HOST:PORT",
            "Address where node 0 listens and the others join.",
        ),
    ] = None
    token_file: Annotated[
        str | None,
        _of_nodes(
            "--token-file",
            "FILE",
            "File with the token that all nodes share; only you may read it.",
            default_text="DPBENCH_TOKEN; node 0 makes one and prints it",
            scope="call",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class FolderOptions:
    """Folder for the results, and how much is printed meanwhile."""

    results_dir: Annotated[
        Path,
        option(
            "--results-dir",
            PathName(),
            "Directory for results folders.",
            OUTPUT_PANEL,
            scope="call",
            common=True,
            elsewhere="--output --output-dir --out -o",
            metavar="DIR",
        ),
    ] = Path("results")
    quiet: Annotated[
        bool,
        flag(
            "--quiet",
            "Show no progress.",
            OUTPUT_PANEL,
            also=("-q",),
            scope="call",
            in_python=False,
        ),
    ] = False
