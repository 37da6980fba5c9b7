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
class RepeatedOptions(FolderOptions, ThreadsOption, MachineOptions, GridOptions):
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
            help="Folder of what is measured.",
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
            help="A results folder, or a part of it as in dpbench compare. Without it the "
            "candidate is measured now.",
        ),
    ] = None
    baseline: Annotated[
        str | None,
        Setting(
            options=("--baseline",),
            kind=Text(),
            metavar="DIR",
            help="A results folder to compare with; without CANDIDATE its sweep is run again.",
        ),
    ] = None
    against: Annotated[
        str | None,
        Setting(
            options=("--against",),
            kind=Text(),
            metavar="NAME",
            help="An implementation to compare with, measured in turn with the candidate: for "
            "shared machines.",
        ),
    ] = None
    against_ref: Annotated[
        str | None,
        Setting(
            options=("--against-ref",),
            kind=Text(),
            metavar="REV",
            help="The code of --arch at this git revision, measured in turn with that of now.",
        ),
    ] = None
    against_arch: Annotated[
        str | None,
        Setting(
            options=("--against-arch",),
            kind=Text(),
            metavar="NAME",
            help="Another architecture to compare with, measured in turn.",
        ),
    ] = None
    against_python: Annotated[
        str | None,
        Setting(
            options=("--against-python",),
            kind=Text(),
            metavar="PATH",
            help="A virtual environment with another torch or dpbench, measured in turn.",
        ),
    ] = None
    tolerance: Annotated[
        str | Auto,
        Setting(
            options=("--tolerance",),
            kind=Text(),
            metavar="P%",
            panel=VERDICT,
            help="How much worse is no regression.",
            default_text="pyproject.toml, else 3%",
        ),
    ] = AUTO
    metric: Annotated[
        tuple[str, ...] | Auto,
        Setting(
            options=("--metric",),
            kind=Several(),
            metavar="NAME[=P%]",
            panel=VERDICT,
            help="images_per_second, efficiency, exposed_communication_seconds, "
            "peak_memory_bytes, …; several, each with a tolerance of its own if it has one.",
            default_text="pyproject.toml, else images_per_second",
        ),
    ] = AUTO
    strict: Annotated[
        bool | Auto,
        Setting(
            options=("--strict/--not-strict",),
            kind=Flag(),
            panel=VERDICT,
            help="Inconclusive is a failure too.",
            default_text="pyproject.toml, else not-strict",
        ),
    ] = AUTO
    force: Annotated[
        bool,
        Setting(
            options=("--force",),
            kind=Flag(),
            panel=VERDICT,
            help="Compare in spite of different environments.",
        ),
    ] = False
    repetitions: Annotated[
        str | Auto,
        Setting(
            options=("--repetitions",),
            kind=Text(),
            metavar="N",
            panel=MEASURING,
            help="Fresh runs of every row to begin with; more while it is inconclusive, which is "
            "looked at up to 5 times.",
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
            help="When to stop adding runs.",
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
            help="The verdict as JSON on stdout.",
        ),
    ] = False
    junit: Annotated[Path | None, _file("--junit", "Write JUnit XML.")] = None
    benchmark_action: Annotated[
        Path | None, _file("--benchmark-action", "Write JSON for github-action-benchmark.")
    ] = None
    markdown: Annotated[Path | None, _file("--markdown", "Write Markdown.")] = None
    github: Annotated[
        bool,
        Setting(
            options=("--github",),
            kind=Flag(),
            panel=PRINTED,
            help="Append Markdown to $GITHUB_STEP_SUMMARY.",
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
            help="A results folder with repetitions. Without it they are measured now.",
        ),
    ] = None
    repetitions: Annotated[
        int,
        Setting(
            options=("--repetitions",),
            kind=WholeNumber(least=1),
            metavar="N",
            help="Fresh runs of every row, at least 4.",
        ),
    ] = 10
    again: Annotated[
        Path | None,
        Setting(
            options=("--again",),
            kind=PathName(),
            metavar="DIR",
            help="Results of the same on an earlier occasion: do stored numbers last?",
        ),
    ] = None
    pause: Annotated[
        float | None,
        Setting(
            options=("--pause",),
            kind=Duration(),
            metavar="TIME",
            help="Measure twice with so long a pause between: two occasions in one command.",
        ),
    ] = None
    as_json: Annotated[
        bool,
        Setting(
            options=("--json",),
            argument="as_json",
            kind=Flag(),
            panel=OUTPUT,
            help="The same as JSON.",
        ),
    ] = False
