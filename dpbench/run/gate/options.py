"""The options of `dpbench check`: those of a sweep, and its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from dpbench.run.shared_options import (
    BATCH_SIZES_OPTION,
    IMPLEMENTATIONS_OPTION,
    OUTPUT_PANEL,
    TRIAL_PANEL,
    ArchOption,
    FolderOptions,
    GridOptions,
    MachineOptions,
    ThreadsOption,
    flag,
    name_option,
    one_value,
    option,
)
from dpbench.specs.settings import (
    AUTO,
    Auto,
    PathName,
    Setting,
    Several,
    Text,
    settings_of,
)

VERDICT_PANEL = "Verdict"
MEASURING_PANEL = "Measuring, without CANDIDATE"
PRINTED_PANEL = "Output"


@dataclass(frozen=True, kw_only=True)
class PlaceOptions(FolderOptions):
    """Folders of what is measured, and how much is printed meanwhile."""

    data_dir: Annotated[Path | None, settings_of(GridOptions)["data_dir"]] = None
    name: Annotated[
        str | None,
        name_option("Name of the results folder.", OUTPUT_PANEL, "the time and the command"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class RepeatedOptions(PlaceOptions, ThreadsOption, MachineOptions, GridOptions, ArchOption):
    """A sweep that is measured to be compared: its defaults are few rows and fixed steps."""

    implementations: Annotated[tuple[str, ...], IMPLEMENTATIONS_OPTION] = ("ddp",)
    batch_sizes: Annotated[
        tuple[int | str, ...], replace(BATCH_SIZES_OPTION, help="Samples per replica.")
    ] = (64,)
    warmup: Annotated[int, one_value("warmup_steps", TRIAL_PANEL)] = 10
    steps: Annotated[int, one_value("timed_steps", TRIAL_PANEL)] = 50


def _file(name: str, help: str) -> Setting:
    return option(name, PathName(), help, PRINTED_PANEL, metavar="FILE")


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
        option(
            "--baseline",
            Text(),
            "Results folder to compare with; without CANDIDATE its sweep is run again.",
            common=True,
            metavar="DIR",
        ),
    ] = None
    against: Annotated[
        str | None,
        option(
            "--against",
            Text(),
            "Implementation to compare with, measured in turns with the candidate.",
            common=True,
            metavar="NAME",
        ),
    ] = None
    against_ref: Annotated[
        str | None,
        option(
            "--against-ref",
            Text(),
            "Git revision of your code to compare with, measured in turns.",
            common=True,
            metavar="REV",
        ),
    ] = None
    against_arch: Annotated[
        str | None,
        option(
            "--against-arch", Text(), "Model to compare with, measured in turns.", metavar="NAME"
        ),
    ] = None
    against_python: Annotated[
        str | None,
        option(
            "--against-python",
            Text(),
            "Virtual environment with another torch or dpbench, measured in turns.",
            metavar="PATH",
        ),
    ] = None
    tolerance: Annotated[
        str | Auto,
        option(
            "--tolerance",
            Text(),
            "Slowdown to accept.",
            VERDICT_PANEL,
            common=True,
            elsewhere="--threshold",
            metavar="P%",
            default_text="pyproject.toml, else 3%",
        ),
    ] = AUTO
    metric: Annotated[
        tuple[str, ...] | Auto,
        option(
            "--metric",
            Several(),
            "Metric, e.g. efficiency or peak_memory_bytes=5%; may be repeated.",
            VERDICT_PANEL,
            common=True,
            elsewhere="--metrics",
            metavar="NAME[=P%]",
            default_text="pyproject.toml, else images_per_second",
        ),
    ] = AUTO
    strict: Annotated[
        bool | Auto,
        flag(
            "--strict/--not-strict",
            "Treat inconclusive as a failure.",
            VERDICT_PANEL,
            default_text="pyproject.toml, else not-strict",
        ),
    ] = AUTO
    force: Annotated[
        bool, flag("--force", "Compare although the environments differ.", VERDICT_PANEL)
    ] = False
    repetitions: Annotated[
        str | Auto,
        option(
            "--repetitions",
            Text(),
            "Repetitions of each row to begin with; more while it is inconclusive.",
            MEASURING_PANEL,
            common=True,
            elsewhere="--reps --repeat --repeats --runs -r",
            metavar="N",
            default_text="pyproject.toml, else 5",
        ),
    ] = AUTO
    budget: Annotated[
        str | Auto,
        option(
            "--budget",
            Text(),
            "Time after which no repetitions are added.",
            MEASURING_PANEL,
            metavar="TIME",
            default_text="pyproject.toml, else 5m",
        ),
    ] = AUTO
    as_json: Annotated[
        bool,
        flag("--json", "Print the verdict as JSON on stdout.", PRINTED_PANEL, argument="as_json"),
    ] = False
    junit: Annotated[Path | None, _file("--junit", "Write the verdict as JUnit XML.")] = None
    markdown: Annotated[Path | None, _file("--markdown", "Write the verdict as Markdown.")] = None
