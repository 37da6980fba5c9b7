"""The options of `dpbench check`: those of a sweep, and its own."""

from __future__ import annotations

from typing import Annotated

from dpbench.options.bridge import Options, option
from dpbench.options.shared import (
    ARCH_HELP,
    ARCHITECTURE,
    MACHINE_PANEL,
    THREADS_HELP,
    TRIAL_PANEL,
    USUAL_THREADS,
    BatchSize,
    FolderOptions,
    GridOptions,
    Implementation,
    MachineOptions,
    config_option,
    name_option,
    printed,
)
from dpbench.options.types import CommaList, Count, Duration, FilePath, Number, Percent, WholeNumber
from dpbench.specs import MOST_REPETITIONS


class RepeatedOptions(FolderOptions, MachineOptions, GridOptions):
    """A sweep that is measured to be compared: its defaults are few rows and fixed steps."""

    panel = TRIAL_PANEL
    arch: str = option(ARCHITECTURE, ARCH_HELP, "NAME")
    implementations: CommaList[Implementation] = option(
        ("ddp",), "Implementations to check.", "A,B", also=("--implementation",)
    )
    batch_sizes: CommaList[BatchSize] = option(
        (64,), "Samples per replica.", "N,N", also=("--batch-size",)
    )
    warmup: Number = option(10, "Warm-up steps before the timed ones.", "N")
    steps: Count = option(50, "Timed steps per trial.", "N")
    threads: Count | None = option(
        None, THREADS_HELP, "N", panel=MACHINE_PANEL, usual=USUAL_THREADS
    )
    name: str | None = name_option("Name of the results folder.", "the time and the command")


class VerdictOptions(Options):
    """What counts as a regression."""

    panel = "Verdict"
    tolerance: Percent = option(0.03, "Slowdown to accept.", "P%", usual="3%")
    metric: CommaList[str] = option(
        ("images_per_second",),
        "Metric, e.g. efficiency or peak_memory_bytes=5%; may be repeated.",
        "NAME[=P%]",
        repeated=True,
    )
    strict: bool = option(
        False, "Treat inconclusive as a failure.", names=("--strict/--not-strict",)
    )
    force: bool = option(False, "Compare even if the environments differ.")


class MeasuringOptions(Options):
    """How often rows are measured."""

    panel = "Measurement (no CANDIDATE given)"
    repetitions: Annotated[int, WholeNumber(least=2, most=MOST_REPETITIONS)] = option(
        5, "Repetitions of each row to begin with; more while it is inconclusive.", "N"
    )
    budget: Duration = option(
        300.0, "Time after which no repetitions are added.", "TIME", usual="5m"
    )


class CheckOptions(MeasuringOptions, VerdictOptions, RepeatedOptions):
    """Every option of `dpbench check`."""

    candidate: str | None = option(
        None,
        "Results folder, or a part as in 'dpbench compare'; measured now if left out.",
        "CANDIDATE",
        argument=True,
    )
    baseline: str | None = option(
        None, "Results folder to compare with; without CANDIDATE its sweep is run again.", "DIR"
    )
    against: str | None = option(
        None, "Implementation to compare with; its trials alternate with the candidate's.", "NAME"
    )
    against_ref: str | None = option(
        None, "Git revision of your code to compare with; trials alternate.", "REV"
    )
    against_arch: str | None = option(None, "Model to compare with; trials alternate.", "NAME")
    against_python: str | None = option(
        None, "Virtual environment with another torch or dpbench; trials alternate.", "PATH"
    )
    config: FilePath | None = config_option()
    as_json: bool = printed("Print the verdict as JSON on stdout.", "--json")
    junit: FilePath | None = option(None, "Write the verdict as JUnit XML.", "FILE", panel="Output")
    markdown: FilePath | None = option(
        None, "Write the verdict as Markdown.", "FILE", panel="Output"
    )
