"""The options of `dpbench check`: those of a sweep, and its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from dpbench.options.bridge import OptionInfo, with_help
from dpbench.options.shared import (
    ARCH,
    ARCHITECTURE,
    BATCH_SIZES,
    CONFIG,
    IMPLEMENTATIONS_OPTION,
    THREADS,
    TRIAL_PANEL,
    BatchSize,
    FolderOptions,
    GridOptions,
    Implementation,
    MachineOptions,
    json_option,
    name_option,
)
from dpbench.options.types import CommaList, Count, Duration, FilePath, Number, Percent, WholeNumber
from dpbench.specs import MOST_REPETITIONS

VERDICT_PANEL = "Verdict"
MEASURING_PANEL = "Measuring, without CANDIDATE"
PRINTED_PANEL = "Output"


class RepeatedOptions(FolderOptions, MachineOptions, GridOptions):
    """A sweep that is measured to be compared: its defaults are few rows and fixed steps."""

    arch: Annotated[str, ARCH] = ARCHITECTURE
    implementations: Annotated[
        CommaList[Implementation], replace(IMPLEMENTATIONS_OPTION, default=None)
    ] = ("ddp",)
    batch_sizes: Annotated[CommaList[BatchSize], with_help(BATCH_SIZES, "Samples per replica.")] = (
        64,
    )
    warmup: Annotated[
        Number, OptionInfo("Warm-up steps before the timed ones.", "N", TRIAL_PANEL)
    ] = 10
    steps: Annotated[Count, OptionInfo("Timed steps per trial.", "N", TRIAL_PANEL)] = 50
    threads: Annotated[Count | None, THREADS] = None
    name: Annotated[
        str | None, name_option("Name of the results folder.", "the time and the command")
    ] = None


class CheckOptions(RepeatedOptions):
    """Every option of `dpbench check`."""

    candidate: Annotated[
        str | None,
        OptionInfo(
            "Results folder, or a part as in 'dpbench compare'; measured now if left out.",
            "CANDIDATE",
            argument=True,
        ),
    ] = None
    baseline: Annotated[
        str | None,
        OptionInfo(
            "Results folder to compare with; without CANDIDATE its sweep is run again.", "DIR"
        ),
    ] = None
    against: Annotated[
        str | None,
        OptionInfo("Implementation to compare with, measured in turns with the candidate.", "NAME"),
    ] = None
    against_ref: Annotated[
        str | None,
        OptionInfo("Git revision of your code to compare with, measured in turns.", "REV"),
    ] = None
    against_arch: Annotated[
        str | None, OptionInfo("Model to compare with, measured in turns.", "NAME")
    ] = None
    against_python: Annotated[
        str | None,
        OptionInfo("Virtual environment with another torch or dpbench, measured in turns.", "PATH"),
    ] = None
    config: Annotated[FilePath | None, CONFIG] = None
    tolerance: Annotated[
        Percent, OptionInfo("Slowdown to accept.", "P%", VERDICT_PANEL, default="3%")
    ] = 0.03
    metric: Annotated[
        CommaList[str],
        OptionInfo(
            "Metric, e.g. efficiency or peak_memory_bytes=5%; may be repeated.",
            "NAME[=P%]",
            VERDICT_PANEL,
            default="images_per_second",
            repeated=True,
        ),
    ] = ("images_per_second",)
    strict: Annotated[
        bool,
        OptionInfo(
            "Treat inconclusive as a failure.",
            None,
            VERDICT_PANEL,
            names=("--strict/--not-strict",),
        ),
    ] = False
    force: Annotated[
        bool, OptionInfo("Compare although the environments differ.", None, VERDICT_PANEL)
    ] = False
    repetitions: Annotated[
        Annotated[int, WholeNumber(least=2, most=MOST_REPETITIONS)],
        OptionInfo(
            "Repetitions of each row to begin with; more while it is inconclusive.",
            "N",
            MEASURING_PANEL,
        ),
    ] = 5
    budget: Annotated[
        Duration,
        OptionInfo(
            "Time after which no repetitions are added.", "TIME", MEASURING_PANEL, default="5m"
        ),
    ] = 300.0
    as_json: Annotated[bool, json_option("Print the verdict as JSON on stdout.")] = False
    junit: Annotated[
        FilePath | None, OptionInfo("Write the verdict as JUnit XML.", "FILE", PRINTED_PANEL)
    ] = None
    markdown: Annotated[
        FilePath | None, OptionInfo("Write the verdict as Markdown.", "FILE", PRINTED_PANEL)
    ] = None
