"""The options of `dpbench comm`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from dpbench.errors import UsageError
from dpbench.run.shared_options import (
    BACKENDS_OPTION,
    GROUP_SIZES_OPTION,
    OUTPUT_PANEL,
    REPETITIONS_KIND,
    FolderOptions,
    MachineOptions,
    ThreadsOption,
    flag,
    name_option,
    option,
)
from dpbench.specs.settings import (
    AUTO,
    Auto,
    Choice,
    Parsed,
    Text,
    WholeNumber,
)
from dpbench.specs.traits import PROCESS_GROUP_BACKENDS
from dpbench.values import duration_seconds, shorten

SHORTEST_TIME_LIMIT_SECONDS = 1.0
"""Ranks take longer to start."""
MEASURED_PANEL = "What is measured"


def _time_limit(option: str, token: str) -> float:
    seconds = duration_seconds(option, token)
    if seconds < SHORTEST_TIME_LIMIT_SECONDS:
        raise UsageError(
            f"{option} {shorten(token)}: ranks take longer to start; expected 1s or more"
        )
    return seconds


@dataclass(frozen=True, kw_only=True)
class CommOptions(FolderOptions, ThreadsOption, MachineOptions):
    """Every option of `dpbench comm` with its value."""

    collectives: Annotated[
        str,
        option(
            "--collectives",
            Text(),
            "Collectives: all_reduce, broadcast, all_gather, reduce_scatter, or all.",
            MEASURED_PANEL,
            also=("--collective",),
            metavar="A,B",
        ),
    ] = "all_reduce"
    backends: Annotated[
        tuple[str, ...] | Auto,
        replace(
            BACKENDS_OPTION,
            kind=Choice(PROCESS_GROUP_BACKENDS),
            panel=MEASURED_PANEL,
            default_text="all that work here",
        ),
    ] = AUTO
    group_sizes: Annotated[
        tuple[int, ...] | Auto,
        replace(
            GROUP_SIZES_OPTION,
            kind=WholeNumber(least=2),
            panel=MEASURED_PANEL,
            help="Numbers of ranks to measure.",
            default_text="2, 4, 8, … up to --gpus",
        ),
    ] = AUTO
    sizes: Annotated[
        str,
        option(
            "--sizes",
            Text(),
            "Message sizes: a range in steps of 4 times, or a list; B, KB, MiB, ….",
            MEASURED_PANEL,
            metavar="FROM-TO|A,B",
        ),
    ] = "4B-256MB"
    samples: Annotated[
        int,
        option(
            "--samples",
            WholeNumber(least=1),
            "Timed samples of each size; large messages get fewer, at least 5.",
            MEASURED_PANEL,
            metavar="N",
        ),
    ] = 20
    repetitions: Annotated[
        int,
        option(
            "--repetitions",
            REPETITIONS_KIND,
            "Repetitions, each in fresh processes; an even number cancels drift.",
            MEASURED_PANEL,
            metavar="N",
        ),
    ] = 4
    time_limit: Annotated[
        float,
        option(
            "--time-limit",
            Parsed(_time_limit),
            "Time limit per collective, backend, group size and repetition.",
            MEASURED_PANEL,
            metavar="TIME",
            typed_default="5m",
        ),
    ] = 300.0
    name: Annotated[
        str | None,
        name_option(
            "Name of the results folder; that of a sweep gets the collectives added.",
            OUTPUT_PANEL,
            "the time and collectives",
        ),
    ] = None
    charts: Annotated[
        bool, flag("--charts/--no-charts", "Draw the charts (PNG and SVG).", OUTPUT_PANEL)
    ] = True
    dry_run: Annotated[
        bool, flag("--dry-run", "Print what would be measured, and exit.", OUTPUT_PANEL)
    ] = False
    as_json: Annotated[
        bool,
        flag(
            "--json",
            "Print JSON on stdout, and everything else on stderr.",
            OUTPUT_PANEL,
            argument="as_json",
        ),
    ] = False
