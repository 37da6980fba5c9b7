"""The options of `dpbench check` and `dpbench calibrate`: those of a sweep, and their own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from dpbench.run.shared_options import (
    BATCH_SIZES_OPTION,
    IMPLEMENTATIONS_OPTION,
    OUTPUT,
    TRIAL,
    ArchOption,
    FolderOptions,
    GridOptions,
    MachineOptions,
    ThreadsOption,
    one_value,
)
from dpbench.settings import (
    AUTO,
    Auto,
    Duration,
    Flag,
    PathName,
    Setting,
    Several,
    Text,
    WholeNumber,
)

VERDICT = "Verdict"
MEASURING = "Measuring, without CANDIDATE"
PRINTED = "Output"


@dataclass(frozen=True, kw_only=True)
class RepeatedOptions(FolderOptions, ThreadsOption, MachineOptions, GridOptions, ArchOption):
    """A sweep that is measured to be compared: its defaults are few rows and fixed steps."""

    implementations: Annotated[tuple[str, ...], IMPLEMENTATIONS_OPTION] = ("ddp",)
    batch_sizes: Annotated[
        tuple[int | str, ...], replace(BATCH_SIZES_OPTION, help="Samples per replica.")
    ] = (64,)
    warmup: Annotated[int, one_value("warmup_steps", TRIAL)] = 10
    steps: Annotated[int, one_value("timed_steps", TRIAL)] = 50
    name: Annotated[
        str | None,
        Setting(
            options=("--name",),
            kind=Text(),
            metavar="NAME",
            panel=OUTPUT,
            help="Name of the results folder.",
            default_text="the time and the command",
        ),
    ] = None


def _file(option: str, help: str) -> Setting:
    return Setting(options=(option,), kind=PathName(), metavar="FILE", panel=PRINTED, help=help)


@dataclass(frozen=True, kw_only=True)
class CheckOptions(RepeatedOptions):
    """Every option of `dpbench check` with its value; AUTO is left to pyproject.toml."""

    candidate: Annotated[
        str | None,
        Setting(
            options=(),
            argument="candidate",
            kind=Text(),
            metavar="CANDIDATE",
            help="Results folder, or a part as in 'dpbench compare'; measured now if left out.",
        ),
    ] = None
    baseline: Annotated[
        str | None,
        Setting(
            options=("--baseline",),
            common=True,
            kind=Text(),
            metavar="DIR",
            help="Results folder to compare with; without CANDIDATE its sweep is run again.",
        ),
    ] = None
    against: Annotated[
        str | None,
        Setting(
            options=("--against",),
            common=True,
            kind=Text(),
            metavar="NAME",
            help="Implementation to compare with, measured in turns with the candidate.",
        ),
    ] = None
    against_ref: Annotated[
        str | None,
        Setting(
            options=("--against-ref",),
            common=True,
            kind=Text(),
            metavar="REV",
            help="Git revision of your code to compare with, measured in turns.",
        ),
    ] = None
    against_arch: Annotated[
        str | None,
        Setting(
            options=("--against-arch",),
            kind=Text(),
            metavar="NAME",
            help="Model to compare with, measured in turns.",
        ),
    ] = None
    against_python: Annotated[
        str | None,
        Setting(
            options=("--against-python",),
            kind=Text(),
            metavar="PATH",
            help="Virtual environment with another torch or dpbench, measured in turns.",
        ),
    ] = None
    tolerance: Annotated[
        str | Auto,
        Setting(
            options=("--tolerance",),
            common=True,
            elsewhere="--threshold",
            kind=Text(),
            metavar="P%",
            panel=VERDICT,
            help="Slowdown to accept.",
            default_text="pyproject.toml, else 3%",
        ),
    ] = AUTO
    metric: Annotated[
        tuple[str, ...] | Auto,
        Setting(
            options=("--metric",),
            common=True,
            elsewhere="--metrics",
            kind=Several(),
            metavar="NAME[=P%]",
            panel=VERDICT,
            help="Metric, e.g. efficiency or peak_memory_bytes=5%; may be repeated.",
            default_text="pyproject.toml, else images_per_second",
        ),
    ] = AUTO
    strict: Annotated[
        bool | Auto,
        Setting(
            options=("--strict/--not-strict",),
            kind=Flag(),
            panel=VERDICT,
            help="Treat inconclusive as a failure.",
            default_text="pyproject.toml, else not-strict",
        ),
    ] = AUTO
    force: Annotated[
        bool,
        Setting(
            options=("--force",),
            kind=Flag(),
            panel=VERDICT,
            help="Compare although the environments differ.",
        ),
    ] = False
    repetitions: Annotated[
        str | Auto,
        Setting(
            options=("--repetitions",),
            common=True,
            elsewhere="--reps --repeat --repeats --runs -r",
            kind=Text(),
            metavar="N",
            panel=MEASURING,
            help="Repetitions of each row to begin with; more while it is inconclusive.",
            default_text="pyproject.toml, else 5",
        ),
    ] = AUTO
    budget: Annotated[
        str | Auto,
        Setting(
            options=("--budget",),
            kind=Text(),
            metavar="TIME",
            panel=MEASURING,
            help="Time after which no repetitions are added.",
            default_text="pyproject.toml, else 5m",
        ),
    ] = AUTO
    as_json: Annotated[
        bool,
        Setting(
            options=("--json",),
            argument="as_json",
            kind=Flag(),
            panel=PRINTED,
            help="Print the verdict as JSON on stdout.",
        ),
    ] = False
    junit: Annotated[Path | None, _file("--junit", "Write the verdict as JUnit XML.")] = None
    benchmark_action: Annotated[
        Path | None,
        _file("--benchmark-action", "Write the verdict as JSON for github-action-benchmark."),
    ] = None
    markdown: Annotated[Path | None, _file("--markdown", "Write the verdict as Markdown.")] = None
    github: Annotated[
        bool,
        Setting(
            options=("--github",),
            kind=Flag(),
            panel=PRINTED,
            help="Append the verdict as Markdown to $GITHUB_STEP_SUMMARY.",
        ),
    ] = False


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions(RepeatedOptions):
    """Every option of `dpbench calibrate` with its value."""

    folder: Annotated[
        Path | None,
        Setting(
            options=(),
            argument="folder",
            kind=PathName(),
            metavar="DIR",
            help="Results folder with repetitions; measured now if left out.",
        ),
    ] = None
    repetitions: Annotated[
        int,
        Setting(
            options=("--repetitions",),
            common=True,
            elsewhere="--reps --repeat --repeats --runs -r",
            kind=WholeNumber(least=1),
            metavar="N",
            help="Repetitions of each row, each in fresh processes; at least 4.",
        ),
    ] = 10
    again: Annotated[
        Path | None,
        Setting(
            options=("--again",),
            common=True,
            kind=PathName(),
            metavar="DIR",
            help="Results of the same rows from an earlier occasion.",
        ),
    ] = None
    pause: Annotated[
        float | None,
        Setting(
            options=("--pause",),
            common=True,
            kind=Duration(),
            metavar="TIME",
            help="Measure on two occasions, with this pause between them.",
        ),
    ] = None
    as_json: Annotated[
        bool,
        Setting(
            options=("--json",),
            argument="as_json",
            kind=Flag(),
            panel=OUTPUT,
            help="Print the result as JSON.",
        ),
    ] = False
