"""The options of `project`, `iso` and `what-if`, each declared once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from dpbench.analysis.communication.topology import THIS_MACHINE
from dpbench.errors import UsageError
from dpbench.run.results import RowFilter
from dpbench.run.shared_options import flag, option
from dpbench.specs.settings import Kind, Parsed, PathName, Setting, Several, Text, settings_of
from dpbench.specs.traits import IMPLEMENTATIONS, PROCESS_GROUP_BACKENDS
from dpbench.specs.trial import BUCKETED
from dpbench.values import bounded_float, known_name, percentage, positive_int

SERIES_PANEL = "Which series"
NETWORK_PANEL = "Network"
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


def _process_group_backend(option: str, token: str) -> str:
    return known_name(option, token, PROCESS_GROUP_BACKENDS)


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


def _only(name: str, kind: Kind) -> Setting:
    """An option that keeps some series."""
    return replace(settings_of(RowFilter)[name], kind=kind, panel=SERIES_PANEL)


def _at(default_text: str) -> Setting:
    """The group sizes to predict at, which need not be measured ones."""
    return replace(GROUP_SIZES, default_text=default_text)


GROUP_SIZES = option(
    "--group-sizes",
    Parsed(group_size),
    "Numbers of replicas.",
    also=("--group-size",),
    several=True,
    metavar="N,N",
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
        option(
            "--comm",
            PathName(),
            "Results folder of 'dpbench comm', if DIR holds no collectives.",
            NETWORK_PANEL,
            metavar="DIR2",
        ),
    ] = None
    topology: Annotated[
        str | None,
        option(
            "--topology",
            Text(),
            "Network to assume: a name such as h100-nvswitch-ndr, or a TOML file.",
            NETWORK_PANEL,
            metavar="NAME|FILE.toml",
            default_text=THIS_MACHINE,
        ),
    ] = None
    group_sizes: Annotated[tuple[int, ...] | None, GROUP_SIZES] = None
    implementations: Annotated[
        tuple[str, ...] | None,
        _only("implementations", Parsed(_simulated)),
    ] = None
    backends: Annotated[
        tuple[str, ...] | None, _only("backends", Parsed(_process_group_backend))
    ] = None
    json: Annotated[bool, flag("--json", "Print one JSON object instead of tables.")] = False

    verbose: Annotated[
        bool,
        flag(
            "--verbose", "Print all numbers, how to read them, and what is assumed.", also=("-v",)
        ),
    ] = False

    @property
    def cap_mb(self) -> float | None:
        """Bucket size in MiB in place of the sweep's; None keeps to that."""
        return None


@dataclass(frozen=True, kw_only=True)
class BatchSizeOptions(PredictionOptions):
    """Series of some batch sizes only."""

    batch_sizes: Annotated[tuple[int, ...] | None, _only("batch_sizes", Parsed(positive_int))] = (
        None
    )


@dataclass(frozen=True, kw_only=True)
class BucketSizeOptions(PredictionOptions):
    """Buckets of another size than in the sweep."""

    bucket_cap_mb: Annotated[
        float | None,
        option(
            "--bucket-cap-mb",
            _bounded(SMALLEST_CAP_MB, LARGEST_CAP_MB),
            "Bucket size in MiB, that of the first bucket too.",
            metavar="MIB",
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
    output: Annotated[
        Path | None,
        option(
            "--output",
            PathName(),
            "Folder to draw the projection into (PNG and SVG).",
            metavar="DIR",
            default_text="no charts",
            elsewhere="--charts --no-charts -o",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class IsoOptions(BucketSizeOptions):
    """Every option of `dpbench iso`."""

    group_sizes: Annotated[
        tuple[int, ...] | None, _at("the largest measured; 8, 64, 1000 on a network that is given")
    ] = None
    efficiency: Annotated[
        float,
        option(
            "--efficiency",
            Parsed(_efficiency),
            "Share of linear scaling to keep.",
            metavar="P%",
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
        option(
            "--change",
            Several(),
            "Change to simulate, e.g. bandwidth=2 or gradients=bf16; may be repeated.",
            metavar="NAME=VALUE",
            default_text="a list of common ones",
        ),
    ] = None
