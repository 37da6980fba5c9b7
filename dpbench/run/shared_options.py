"""Parts that the options of several commands are composed of."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from dpbench.run.devices import GpuNumbers
from dpbench.settings import (
    AUTO,
    Auto,
    Choice,
    CountOr,
    Flag,
    Parsed,
    PathName,
    Setting,
    Text,
    WholeNumber,
)
from dpbench.specs import MOST_REPETITIONS, SETTINGS
from dpbench.specs.parts import PLACEMENTS
from dpbench.traits import IMPLEMENTATIONS, PROCESS_GROUP_BACKENDS

TRIAL = "Settings of every trial"
MACHINE = "Machine"
NODES = "Several nodes"
OUTPUT = "Results and output"
LARGEST = "max"
"""In place of a batch size."""
GROWING = "auto"
"""In place of a number of steps."""
REPETITIONS = WholeNumber(least=1, most=MOST_REPETITIONS)
STAGED_BACKEND = "cpu"
"""How other tools call gradients that are staged through the host."""


def _architectures() -> Collection[str]:
    from dpbench import architecture

    return architecture.names()


def _datasets() -> Collection[str]:
    from dpbench.data.registry import DATASETS

    return DATASETS


def _dataset(option: str, token: str) -> str:
    from dpbench.run.sweep.loading import dataset_name

    return dataset_name(option, token)


IMPLEMENTATIONS_OPTION = Setting(
    options=("--implementations", "--implementation"),
    common=True,
    elsewhere="--impl --impls --strategy --strategies",
    kind=Choice(tuple(IMPLEMENTATIONS)),
    several=True,
    metavar="A,B",
    help="Implementations to compare; dp and ddp are dpbench's own.",
)
BATCH_SIZES_OPTION = Setting(
    options=("--batch-sizes", "--batch-size"),
    common=True,
    elsewhere="--batch --bs --batchsize --batch_size -b",
    kind=CountOr(LARGEST, offers_word=False),
    several=True,
    metavar="N,N",
    help="Samples per replica (per group with --scaling strong); max: the most that fit.",
)
GROUP_SIZES_OPTION = Setting(
    options=("--group-sizes", "--group-size"),
    common=True,
    elsewhere="--world-size --world_size --replicas --nproc",
    kind=WholeNumber(least=1),
    several=True,
    metavar="N,N",
    help="Numbers of replicas to measure.",
    default_text="1, 2, 4, … up to --gpus",
)
BACKENDS_OPTION = Setting(
    options=("--backends", "--backend"),
    common=True,
    elsewhere="--dist-backend --comm-backend",
    kind=Choice(PROCESS_GROUP_BACKENDS, also=(STAGED_BACKEND,)),
    several=True,
    metavar="A,B",
    help="Backends of the process group.",
    default_text="nccl with CUDA, else gloo",
)


def one_value(field: str, panel: str) -> Setting:
    """A setting of a trial as an option that takes one value."""
    return replace(SETTINGS[field], metavar="N", panel=panel)


@dataclass(frozen=True, kw_only=True)
class ThreadsOption:
    """Threads per replica, where all rows have the same."""

    threads: Annotated[int | Auto, one_value("threads_per_replica", MACHINE)] = AUTO


ARCHITECTURE = "mnist_cnn"
"""The one that is trained unless another is asked for."""
ARCH_OPTION = replace(
    SETTINGS["architecture"], metavar="NAME", complete=_architectures, panel=TRIAL
)


@dataclass(frozen=True, kw_only=True)
class ArchOption:
    """The architecture, where all rows have the same."""

    arch: Annotated[str, ARCH_OPTION] = ARCHITECTURE


@dataclass(frozen=True, kw_only=True)
class GridOptions:
    """Which rows are measured, of which work."""

    input_shape: Annotated[
        str | None,
        Setting(
            options=("--input-shape",),
            kind=Text(),
            metavar="N,N",
            panel=TRIAL,
            help="Shape of one sample, for an --arch that gives only a model.",
        ),
    ] = None
    implementations: Annotated[tuple[str, ...], IMPLEMENTATIONS_OPTION] = ("dp", "ddp")
    backends: Annotated[tuple[str, ...] | Auto, BACKENDS_OPTION] = AUTO
    batch_sizes: Annotated[tuple[int | str, ...], BATCH_SIZES_OPTION] = (32, 64, 128)
    group_sizes: Annotated[tuple[int, ...] | Auto, GROUP_SIZES_OPTION] = AUTO
    step: Annotated[
        str | None,
        replace(SETTINGS["step"], panel=TRIAL, none=None, default_text="dpbench's"),
    ] = None
    data: Annotated[
        str | Auto,
        Setting(
            options=("--data",),
            elsewhere="--dataset --datasets",
            kind=Parsed(_dataset),
            metavar="NAME",
            complete=_datasets,
            panel=TRIAL,
            help="Dataset: a name from 'dpbench list', or file.py:function that returns one.",
            default_text="the architecture's own",
        ),
    ] = AUTO
    data_dir: Annotated[
        Path | None,
        Setting(
            options=("--data-dir",),
            kind=PathName(),
            metavar="PATH",
            panel=TRIAL,
            help="Folder with the MNIST files, or a text file.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class MachineOptions:
    """Which part of this machine is used."""

    gpus: Annotated[
        int | tuple[int, ...] | Auto,
        Setting(
            options=("--gpus",),
            common=True,
            elsewhere="--device --num-gpus --ngpus --devices --nproc-per-node -g",
            kind=GpuNumbers(),
            is_ids=True,
            metavar="N|I,J",
            panel=MACHINE,
            help="Number of GPUs, or their ids (0,1); without CUDA, CPU replicas.",
            default_text="all GPUs; without CUDA, one replica a core",
        ),
    ] = AUTO
    oversubscribe: Annotated[
        bool,
        Setting(
            options=("--oversubscribe",),
            kind=Flag(),
            panel=MACHINE,
            help="Allow more replicas than cores or GPUs.",
        ),
    ] = False


def _of_nodes(option: str, metavar: str, help: str, default_text: str | None = None) -> Setting:
    """An option of a sweep over several nodes, all of which are read together."""
    return Setting(
        options=(option,),
        kind=Text(),
        metavar=metavar,
        panel=NODES,
        help=help,
        default_text=default_text,
    )


@dataclass(frozen=True, kw_only=True)
class NodeOptions:
    """Which nodes a sweep runs on; None is an option that was left out."""

    nnodes: Annotated[
        str | None,
        _of_nodes(
            "--nnodes",
            "N",
            "Number of nodes; run the same command on each. --gpus is per node.",
        ),
    ] = None
    node_rank: Annotated[
        str | None,
        _of_nodes(
            "--node-rank",
            "N",
            "Rank of this node, from 0; node 0 plans, records and reports.",
        ),
    ] = None
    rdzv_endpoint: Annotated[
        str | None,
        _of_nodes(
            "--rdzv-endpoint", "HOST:PORT", "Address where node 0 listens and the others join."
        ),
    ] = None
    rdzv_id: Annotated[
        str | None,
        _of_nodes(
            "--rdzv-id",
            "ID",
            "Name that tells this sweep from another one at the same endpoint.",
            "dpbench",
        ),
    ] = None
    token_file: Annotated[
        str | None,
        _of_nodes(
            "--token-file",
            "FILE",
            "File with the token that all nodes share; only you may read it.",
            "DPBENCH_TOKEN; node 0 makes one and prints it",
        ),
    ] = None
    local_addr: Annotated[
        str | None,
        _of_nodes(
            "--local-addr",
            "ADDRESS",
            "Address at which the other nodes reach this one.",
            "the one from which the endpoint is reached",
        ),
    ] = None
    interface: Annotated[
        str | None,
        _of_nodes(
            "--interface",
            "NAME",
            "Network interface for gloo and nccl on this node.",
            "the one that has the address",
        ),
    ] = None
    join_timeout: Annotated[
        str | None,
        _of_nodes(
            "--join-timeout", "TIME", "Time that nodes wait for each other at the start.", "5m"
        ),
    ] = None
    lost_after: Annotated[
        str | None,
        _of_nodes("--lost-after", "TIME", "Silence after which a node counts as lost.", "10s"),
    ] = None
    placement: Annotated[
        str | None,
        Setting(
            options=("--placement",),
            kind=Text(),
            metavar="pack|spread",
            complete=PLACEMENTS,
            panel=NODES,
            help="Fill one node before the next (pack), or alternate between them (spread).",
            default_text="pack",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class FolderOptions:
    """Folder for the results, and how much is printed meanwhile."""

    results_dir: Annotated[
        Path,
        Setting(
            options=("--results-dir",),
            common=True,
            elsewhere="--output --output-dir --out -o",
            kind=PathName(),
            metavar="DIR",
            panel=OUTPUT,
            help="Directory for results folders.",
        ),
    ] = Path("results")
    quiet: Annotated[
        bool,
        Setting(options=("--quiet", "-q"), kind=Flag(), panel=OUTPUT, help="Show no progress."),
    ] = False
    synthetic: Annotated[
        bool,
        Setting(
            options=("--synthetic-launcher",),
            argument="synthetic",
            kind=Flag(),
            hidden=True,
            help="Start nothing; compute the numbers with a cost model.",
        ),
    ] = False
