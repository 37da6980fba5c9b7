"""The options of `dpbench check`: those of a sweep, and its own."""

from __future__ import annotations

from typing import Annotated, ClassVar

from dpbench.options.bridge import Options, option
from dpbench.options.script import ScriptArguments
from dpbench.options.shared import (
    ARCH_HELP,
    ARCHITECTURE,
    MEASUREMENT_PANEL,
    OUTPUT_PANEL,
    SETTINGS_PANEL,
    THREADS_HELP,
    USUAL_PANEL,
    USUAL_THREADS,
    DataOptions,
    FolderOptions,
    MachineOptions,
    MeasuredImplementation,
    RowOptions,
    Size,
    config_option,
    json_option,
    name_option,
)
from dpbench.options.types import CommaList, Count, Duration, FilePath, Number, Percent, WholeNumber
from dpbench.specs import MOST_REPETITIONS


class ArchitectureOption(Options):
    """The model."""

    arch: str = option(ARCHITECTURE, ARCH_HELP, "NAME")


class CheckedOptions(RowOptions):
    """The checked rows: few by default."""

    implementations: CommaList[MeasuredImplementation] = option(
        ("ddp",), "Implementations to check.", "A,B", also=("--implementation",)
    )
    batch_sizes: CommaList[Size] = option(
        (64,), "Samples per replica.", "N,N", also=("--batch-size",)
    )
    group_sizes: CommaList[Count] | None = option(
        None,
        "Numbers of replicas to measure.",
        "N,N",
        also=("--group-size",),
        usual="all",
    )


class CheckSettingOptions(Options):
    """The settings of all rows; their number of steps is fixed."""

    panel = SETTINGS_PANEL
    threads: Count | None = option(None, THREADS_HELP, "N", usual=USUAL_THREADS)
    warmup: Number = option(10, "Warm-up steps.", "N")
    steps: Count = option(50, "Timed steps.", "N")


class RepeatedOptions(DataOptions, CheckSettingOptions, CheckedOptions, ArchitectureOption):
    """What is measured."""


class VerdictOptions(Options):
    """What counts as a regression."""

    panel = "Verdict"
    tolerance: Percent = option(0.03, "Slowdown to accept.", "P%", usual="3%", panel=USUAL_PANEL)
    metric: CommaList[str] = option(
        ("images_per_second",),
        "Metric, e.g. peak_memory_bytes=5%; may be repeated.",
        "NAME[=P%]",
        repeated=True,
    )
    strict: bool = option(
        False,
        "Fail if the verdict, or that of any row, is inconclusive.",
        names=("--strict/--not-strict",),
    )
    force: bool = option(False, "Compare even if the environments differ.")


class MeasuringOptions(Options):
    """How often rows are measured."""

    panel = MEASUREMENT_PANEL
    repetitions: Annotated[int, WholeNumber(least=2, most=MOST_REPETITIONS)] = option(
        5, "Initial runs of each row; more while inconclusive.", "N"
    )
    budget: Duration = option(300.0, "Time after which no runs are added.", "TIME", usual="5m")


class CheckOptions(
    FolderOptions,
    MachineOptions,
    MeasuringOptions,
    VerdictOptions,
    RepeatedOptions,
    ScriptArguments,
):
    """Every option of `dpbench check`."""

    first: ClassVar[str] = "candidate"
    candidate: str | None = option(
        None,
        "Stored sweep to check, with --baseline; or a training script to measure.",
        "CANDIDATE|SCRIPT",
        argument=True,
    )
    baseline: str | None = option(None, "Stored sweep to compare CANDIDATE with.", "DIR")
    against: str | None = option(None, "Compare with this implementation.", "NAME")
    against_ref: str | None = option(None, "Compare with this Git revision of your code.", "REV")
    against_python: FilePath | None = option(
        None, "Compare with this Python, which has another torch or other packages.", "PATH"
    )
    config: FilePath | None = config_option()
    name: str | None = name_option("Name of the results folder.", "the time and the command")
    as_json: bool = json_option("Print the verdict as JSON on stdout.")
    junit: FilePath | None = option(
        None, "Write the verdict as JUnit XML.", "FILE", panel=OUTPUT_PANEL
    )
    markdown: FilePath | None = option(
        None, "Write the verdict as Markdown.", "FILE", panel=OUTPUT_PANEL
    )
