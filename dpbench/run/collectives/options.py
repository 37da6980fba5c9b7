"""The options of `dpbench comm`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from dpbench.errors import UsageError
from dpbench.run.shared_options import (
    BACKENDS_OPTION,
    GROUP_SIZES_OPTION,
    OUTPUT,
    REPETITIONS,
    FolderOptions,
    MachineOptions,
    ThreadsOption,
)
from dpbench.settings import (
    AUTO,
    Auto,
    Choice,
    Flag,
    Kind,
    Parsed,
    Setting,
    Text,
    WholeNumber,
)
from dpbench.traits import PROCESS_GROUP_BACKENDS
from dpbench.values import duration_seconds, shorten

SHORTEST_TIME_LIMIT_SECONDS = 1.0
"""Ranks take longer to start."""
MEASURED = "What is measured"


def _time_limit(option: str, token: str) -> float:
    seconds = duration_seconds(option, token)
    if seconds < SHORTEST_TIME_LIMIT_SECONDS:
        raise UsageError(
            f"{option} {shorten(token)}: ranks take longer to start; expected 1s or more"
        )
    return seconds


def _measured(options: tuple[str, ...], kind: Kind, metavar: str, help: str) -> Setting:
    return Setting(options=options, kind=kind, metavar=metavar, panel=MEASURED, help=help)


@dataclass(frozen=True, kw_only=True)
class CommOptions(FolderOptions, ThreadsOption, MachineOptions):
    """Every option of `dpbench comm` with its value."""

    collectives: Annotated[
        str,
        _measured(
            ("--collectives", "--collective"),
            Text(),
            "A,B",
            "Collectives: all_reduce, broadcast, all_gather, reduce_scatter, or all.",
        ),
    ] = "all_reduce"
    backends: Annotated[
        tuple[str, ...] | Auto,
        replace(
            BACKENDS_OPTION,
            kind=Choice(PROCESS_GROUP_BACKENDS),
            panel=MEASURED,
            default_text="all that work here",
        ),
    ] = AUTO
    group_sizes: Annotated[
        tuple[int, ...] | Auto,
        replace(
            GROUP_SIZES_OPTION,
            kind=WholeNumber(least=2),
            panel=MEASURED,
            help="Numbers of ranks to measure.",
            default_text="2, 4, 8, … up to --gpus",
        ),
    ] = AUTO
    sizes: Annotated[
        str,
        _measured(
            ("--sizes",),
            Text(),
            "FROM-TO|A,B",
            "Message sizes: a range in steps of 4 times, or a list; B, KB, MiB, ….",
        ),
    ] = "4B-256MB"
    overlap_sizes: Annotated[
        str | Auto,
        replace(
            _measured(
                ("--overlap-sizes",),
                Text(),
                "A,B|none",
                "Sizes of all_reduce to measure also while every rank computes.",
            ),
            default_text="64KiB,1MiB,25MiB, those within --sizes",
        ),
    ] = AUTO
    bucket_sizes: Annotated[
        str | Auto,
        replace(
            _measured(
                ("--bucket-sizes",),
                Text(),
                "A,B|none",
                "Sizes of all_reduce to measure also as a gradient bucket in a step.",
            ),
            default_text="those of --sizes from 4KB to 100MB",
        ),
    ] = AUTO
    samples: Annotated[
        int,
        _measured(
            ("--samples",),
            WholeNumber(least=1),
            "N",
            "Timed samples of each size; large messages get fewer, at least 5.",
        ),
    ] = 20
    repetitions: Annotated[
        int,
        _measured(
            ("--repetitions",),
            REPETITIONS,
            "N",
            "Repetitions, each in fresh processes; an even number cancels drift.",
        ),
    ] = 4
    time_limit: Annotated[
        float,
        replace(
            _measured(
                ("--time-limit",),
                Parsed(_time_limit),
                "TIME",
                "Time limit per collective, backend, group size and repetition.",
            ),
            typed_default="5m",
        ),
    ] = 300.0
    name: Annotated[
        str | None,
        Setting(
            options=("--name",),
            kind=Text(),
            metavar="NAME",
            panel=OUTPUT,
            help="Name of the results folder; that of a sweep gets the collectives added.",
            default_text="the time and collectives",
        ),
    ] = None
    charts: Annotated[
        bool,
        Setting(
            options=("--charts/--no-charts",),
            kind=Flag(),
            panel=OUTPUT,
            help="Draw the charts (PNG and SVG).",
        ),
    ] = True
    dry_run: Annotated[
        bool,
        Setting(
            options=("--dry-run",),
            kind=Flag(),
            panel=OUTPUT,
            help="Print what would be measured, and exit.",
        ),
    ] = False
    as_json: Annotated[
        bool,
        Setting(
            options=("--json",),
            argument="as_json",
            kind=Flag(),
            panel=OUTPUT,
            help="Print JSON on stdout, and everything else on stderr.",
        ),
    ] = False
