"""The options of `project`, `iso`, `what-if` and `buckets`, each declared once."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from dpbench.errors import UsageError
from dpbench.run.prediction.network import THIS_MACHINE
from dpbench.settings import Flag, Kind, Parsed, PathName, Setting, Several, Text
from dpbench.traits import BUCKETED, IMPLEMENTATIONS, PROCESS_GROUP_BACKENDS
from dpbench.values import bounded_float, known_name, percentage, positive_int

SERIES = "Which series"
COSTS = "What it costs"
NETWORK = "Network"
SMALLEST = 1e-6
"""The least price, power, loss or noise scale."""
SMALLEST_CAP_MB = 0.001
LARGEST_CAP_MB = 1_000_000.0
LARGEST_GROUP = 10_000_000
"""More replicas nobody has; their product with a batch would no longer be exact."""


def _simulated(option: str, token: str) -> str:
    name = known_name(option, token, IMPLEMENTATIONS)
    if name not in BUCKETED:
        raise UsageError(
            f"{option}: {name} is not simulated, which {', '.join(BUCKETED)} are; dpbench fit "
            "describes it by a law"
        )
    return name


def _known(names: Collection[str]) -> Callable[[str, str], str]:
    return lambda option, token: known_name(option, token, names)


def group_size(option: str, token: str) -> int:
    """A number of replicas."""
    size = positive_int(option, token)
    if size > LARGEST_GROUP:
        raise UsageError(f"{option}: {size:,} is too large; expected at most {LARGEST_GROUP:,}")
    return size


def _bounded(least: float, most: float) -> Parsed:
    return Parsed(lambda option, token: bounded_float(option, token, least=least, most=most))


def _efficiency(option: str, token: str) -> float:
    return percentage(option, token, examples="90% or 99.5%")


def _only(what: str, name: str, kind: Kind, metavar: str) -> Setting:
    """An option that keeps some series."""
    return Setting(
        options=(f"--{name}s", f"--{name}"),
        kind=kind,
        several=True,
        metavar=metavar,
        panel=SERIES,
        help=f"Only these {what}.",
    )


def _of_network(option: str, kind: Kind, metavar: str, help: str) -> Setting:
    return Setting(options=(option,), kind=kind, metavar=metavar, panel=NETWORK, help=help)


def _cost(option: str, most: float, help: str, default_text: str | None = None) -> Setting:
    return Setting(
        options=(option,),
        kind=_bounded(SMALLEST, most),
        metavar="X",
        panel=COSTS,
        help=help,
        default_text=default_text,
    )


def _at(default_text: str) -> Setting:
    """The group sizes to predict at, which need not be measured ones."""
    return replace(GROUP_SIZES, default_text=default_text)


GROUP_SIZES = Setting(
    options=("--group-sizes", "--group-size"),
    kind=Parsed(group_size),
    several=True,
    metavar="N,N",
    help="Numbers of replicas.",
)


@dataclass(frozen=True, kw_only=True)
class PredictionOptions:
    """Inputs of a prediction: series of a sweep, and a network."""

    folder: Annotated[
        Path,
        Setting(
            options=(),
            argument="folder",
            kind=PathName(),
            metavar="DIR",
            help="Results folder of a sweep.",
        ),
    ]
    comm: Annotated[
        Path | None,
        _of_network(
            "--comm",
            PathName(),
            "DIR2",
            "Results folder of 'dpbench comm', if DIR holds no collectives.",
        ),
    ] = None
    topology: Annotated[
        str | None,
        replace(
            _of_network(
                "--topology",
                Text(),
                "NAME|FILE.toml",
                "Network to assume: a name such as h100-nvswitch-ndr, or a TOML file.",
            ),
            default_text=THIS_MACHINE,
        ),
    ] = None
    nccl_log: Annotated[
        Path | None,
        _of_network(
            "--nccl-log",
            PathName(),
            "FILE",
            "Log of NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,TUNING to take figures from.",
        ),
    ] = None
    group_sizes: Annotated[tuple[int, ...] | None, GROUP_SIZES] = None
    implementations: Annotated[
        tuple[str, ...] | None,
        _only("implementations", "implementation", Parsed(_simulated), "A,B"),
    ] = None
    backends: Annotated[
        tuple[str, ...] | None,
        _only("backends", "backend", Parsed(_known(PROCESS_GROUP_BACKENDS)), "A,B"),
    ] = None
    json: Annotated[
        bool,
        Setting(options=("--json",), kind=Flag(), help="Print one JSON object instead of tables."),
    ] = False

    verbose: Annotated[
        bool,
        Setting(
            options=("--verbose", "-v"),
            kind=Flag(),
            help="Print all numbers, how to read them, and what is assumed.",
        ),
    ] = False

    @property
    def cap_mb(self) -> float | None:
        """Bucket size in MiB in place of the sweep's; None keeps to that."""
        return None


@dataclass(frozen=True, kw_only=True)
class BatchSizeOptions(PredictionOptions):
    """Series of some batch sizes only."""

    batch_sizes: Annotated[
        tuple[int, ...] | None, _only("batch sizes", "batch-size", Parsed(positive_int), "N,N")
    ] = None


@dataclass(frozen=True, kw_only=True)
class BucketSizeOptions(PredictionOptions):
    """Buckets of another size than in the sweep."""

    bucket_cap_mb: Annotated[
        float | None,
        Setting(
            options=("--bucket-cap-mb",),
            kind=_bounded(SMALLEST_CAP_MB, LARGEST_CAP_MB),
            metavar="MIB",
            help="Bucket size in MiB, that of the first bucket too.",
            default_text="as in the sweep",
        ),
    ] = None

    @property
    def cap_mb(self) -> float | None:
        return self.bucket_cap_mb


@dataclass(frozen=True, kw_only=True)
class ProjectOptions(BatchSizeOptions, BucketSizeOptions):
    """Every option of `dpbench project`."""

    group_sizes: Annotated[tuple[int, ...] | None, _at("the measured ones, 8, 64, 1000, 10000")] = (
        None
    )
    price_per_gpu_hour: Annotated[
        float | None,
        _cost("--price-per-gpu-hour", 1e6, "Price of one replica per hour, in any currency."),
    ] = None
    watts_per_gpu: Annotated[
        float | None,
        _cost(
            "--watts-per-gpu",
            1e5,
            "Power of one replica in watts.",
            "what its GPU drew, if that was measured",
        ),
    ] = None
    target_loss: Annotated[
        float | None,
        _cost(
            "--target-loss",
            1e6,
            "Project the time to this loss, which the sweep must have reached.",
        ),
    ] = None
    noise_scale_samples: Annotated[
        float | None,
        _cost(
            "--noise-scale-samples",
            1e12,
            "Gradient noise scale in samples; larger batches save fewer steps.",
            "as measured with sweep --noise-scale",
        ),
    ] = None
    output: Annotated[
        Path | None,
        Setting(
            options=("--output",),
            kind=PathName(),
            metavar="DIR",
            help="Folder to draw the projection into (PNG and SVG).",
            default_text="no charts",
            elsewhere="--charts --no-charts -o",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class IsoOptions(BucketSizeOptions):
    """Every option of `dpbench iso`."""

    group_sizes: Annotated[
        tuple[int, ...] | None,
        _at("the largest measured; 8, 64, 1000 on a network that is given"),
    ] = None
    efficiency: Annotated[
        float,
        Setting(
            options=("--efficiency",),
            kind=Parsed(_efficiency),
            metavar="P%",
            help="Share of linear scaling to keep.",
            typed_default="90%",
        ),
    ] = 0.9


@dataclass(frozen=True, kw_only=True)
class WhatIfOptions(BatchSizeOptions, BucketSizeOptions):
    """Every option of `dpbench what-if`."""

    group_sizes: Annotated[
        tuple[int, ...] | None, _at("the largest measured; 64 on a network that is given")
    ] = None
    change: Annotated[
        tuple[str, ...] | None,
        Setting(
            options=("--change",),
            kind=Several(),
            metavar="NAME=VALUE",
            help="Change to simulate, e.g. bandwidth=2 or gradients=bf16; may be repeated.",
            default_text="a list of common ones",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class BucketsOptions(BatchSizeOptions):
    """Every option of `dpbench buckets`."""

    group_sizes: Annotated[
        tuple[int, ...] | None, _at("the measured ones; 64 on a network that is given")
    ] = None
