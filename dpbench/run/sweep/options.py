"""The options of `dpbench sweep`, each declared once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from dpbench.records import Status
from dpbench.run import presets
from dpbench.run.shared_options import (
    ARCH_OPTION,
    ARCHITECTURE,
    BACKENDS_OPTION,
    GROWING,
    MACHINE,
    OUTPUT,
    REPETITIONS,
    TRIAL,
    FolderOptions,
    GridOptions,
    MachineOptions,
    NodeOptions,
)
from dpbench.run.sweep.effort import BUDGET, NoiseBatches
from dpbench.settings import (
    AUTO,
    Auto,
    Choice,
    CountOr,
    Duration,
    Flag,
    PathName,
    Percentage,
    PositiveNumber,
    Setting,
    Text,
    WholeNumber,
)
from dpbench.specs import AXES, DEFAULTS, SYSTEM
from dpbench.specs.parts import RULES

RETRIED = {s.value.replace("_", "-"): s for s in Status if s is not Status.COMPLETED}
"""Statuses of trials that --retry measures again, as it names them."""
AXES_PANEL = "Settings, each a list to compare"


def _axis(field: str) -> Setting:
    """The list of values of a setting that a trial has."""
    axis = AXES[field]
    return replace(
        axis,
        several=True,
        panel=AXES_PANEL,
        default_text=axis.default_text
        or (axis.text(DEFAULTS[field]) if field in DEFAULTS else None),
    )


def _rules(option: str, help: str) -> Setting:
    return Setting(options=(option,), kind=Text(), metavar="RULE,RULE", panel=AXES_PANEL, help=help)


def _count(option: str, help: str, *, metavar: str = "N") -> Setting:
    return Setting(options=(option,), kind=WholeNumber(), metavar=metavar, panel=TRIAL, help=help)


def _flag(option: str, help: str, panel: str = OUTPUT, **more: Any) -> Setting:
    return Setting(options=(option,), kind=Flag(), panel=panel, help=help, **more)


@dataclass(frozen=True, kw_only=True)
class ArchitectureAxis:
    """The architectures, before all other options."""

    arch: Annotated[tuple[str, ...], replace(ARCH_OPTION, metavar="A,B", several=True)] = (
        ARCHITECTURE,
    )


@dataclass(frozen=True, kw_only=True)
class AxisOptions:
    """Settings that make rows; AUTO is a trial's default."""

    scaling: Annotated[tuple[str, ...], _axis("scaling")] = ("weak",)
    optimizer: Annotated[tuple[str, ...] | Auto, _axis("optimizer")] = AUTO
    lr: Annotated[tuple[float, ...], _axis("learning_rate")] = (0.01,)
    seed: Annotated[tuple[int, ...], _axis("seed")] = (0,)
    dtypes: Annotated[tuple[str, ...] | Auto, _axis("dtype")] = AUTO
    compile: Annotated[tuple[str, ...] | Auto, _axis("compile")] = AUTO
    channels_last: Annotated[tuple[bool, ...] | Auto, _axis("channels_last")] = AUTO
    checkpoint_activations: Annotated[tuple[bool, ...] | Auto, _axis("checkpoint_activations")] = (
        AUTO
    )
    accumulate: Annotated[tuple[int, ...] | Auto, _axis("accumulation_steps")] = AUTO
    sync_every: Annotated[tuple[int, ...] | Auto, _axis("sync_every")] = AUTO
    bucket_cap_mb: Annotated[tuple[float | None, ...] | Auto, _axis("bucket_cap_mb")] = AUTO
    comm_hook: Annotated[tuple[str, ...] | Auto, _axis("comm_hook")] = AUTO
    overlap: Annotated[tuple[str, ...] | Auto, _axis("overlap")] = AUTO
    prefetch: Annotated[tuple[int | None, ...] | Auto, _axis("prefetch")] = AUTO
    data_workers: Annotated[tuple[int, ...] | Auto, _axis("data_workers")] = AUTO
    allocator: Annotated[tuple[str, ...], _axis("allocator")] = (SYSTEM,)
    warmup: Annotated[tuple[int, ...], _axis("warmup_steps")] = (10,)
    steps: Annotated[
        tuple[int | str, ...] | Auto,
        replace(
            _axis("timed_steps"),
            kind=CountOr(GROWING),
            metavar="N,N|auto",
            help="Timed steps per trial; auto: as many as --precision needs.",
            default_text="50, or auto with --precision",
        ),
    ] = AUTO
    threads: Annotated[tuple[int, ...] | Auto, _axis("threads_per_replica")] = AUTO
    exclude: Annotated[
        str | None,
        _rules(
            "--exclude",
            "Rows to leave out, by their settings: 'implementation=dp group_size=4'.",
        ),
    ] = None
    include: Annotated[
        str | None,
        _rules(
            "--include",
            "Rows to add to the grid: 'implementation=ddp batch_size=256'.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class TrialOptions:
    """Options of every trial."""

    repetitions: Annotated[
        int | Auto,
        Setting(
            options=("--repetitions",),
            common=True,
            elsewhere="--reps --rep --repeat --repeats --runs -r",
            kind=REPETITIONS,
            metavar="N",
            panel=TRIAL,
            help="Repetitions of each row in fresh processes; an even number cancels drift.",
            default_text="4, or from 6 on with --precision",
        ),
    ] = AUTO
    precision: Annotated[
        float | None,
        Setting(
            options=("--precision",),
            common=True,
            kind=Percentage(),
            metavar="P%",
            panel=TRIAL,
            help="Add steps and repetitions until every throughput is known to within ± P %.",
        ),
    ] = None
    budget: Annotated[
        float | Auto,
        Setting(
            options=("--budget",),
            kind=Duration(),
            metavar="TIME",
            panel=TRIAL,
            help="Time after which --precision adds no more repetitions.",
            default_text=f"{BUDGET} with --precision",
        ),
    ] = AUTO
    lr_scaling: Annotated[
        str,
        Setting(
            options=("--lr-scaling",),
            kind=Choice(RULES),
            metavar="none|linear|sqrt",
            panel=TRIAL,
            help="Scale --lr with the samples per optimizer step; linear is meant for SGD.",
        ),
    ] = "none"
    target_loss: Annotated[
        float | None,
        Setting(
            options=("--target-loss",),
            kind=PositiveNumber(),
            metavar="X",
            panel=TRIAL,
            help="Report the time until the loss stays below this value.",
        ),
    ] = None
    phases: Annotated[
        int, _count("--phases", "Extra steps that are timed phase by phase; 0: none.")
    ] = 5
    noise_scale: Annotated[
        int,
        Setting(
            options=("--noise-scale",),
            kind=NoiseBatches(),
            metavar="N",
            panel=TRIAL,
            help="Extra global batches to estimate the gradient noise scale, e.g. 50; 0: none.",
        ),
    ] = 0
    trace: Annotated[
        int,
        _count(
            "--trace",
            "Extra steps to record with torch's profiler as a Chrome trace; 0: none.",
        ),
    ] = 0
    gradient_steps: Annotated[
        int,
        _count(
            "--gradient-steps",
            "Extra steps that record when each gradient is ready; 0: none.",
        ),
    ] = 10
    time_limit: Annotated[
        float,
        Setting(
            options=("--time-limit",),
            kind=Duration(),
            metavar="TIME",
            panel=TRIAL,
            help="Time limit of each trial.",
            typed_default="5m",
        ),
    ] = 300.0
    order_seed: Annotated[
        int | None,
        Setting(
            options=("--order-seed",),
            kind=WholeNumber(),
            metavar="N",
            panel=MACHINE,
            help="Shuffle the order of the rows with this seed.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class SweepOptions(
    FolderOptions,
    NodeOptions,
    MachineOptions,
    TrialOptions,
    AxisOptions,
    GridOptions,
    ArchitectureAxis,
):
    """Every option of a sweep with its value; the same for the command and for Python calls."""

    sync_backend: Annotated[
        tuple[str, ...] | Auto,
        replace(
            BACKENDS_OPTION,
            options=("--sync-backend",),
            help="Alias of --backends; cpu means shm.",
            default_text=None,
            common=False,
            elsewhere="",
        ),
    ] = AUTO
    stop_after_failure: Annotated[
        bool,
        _flag("--stop-after-failure", "Skip the larger group sizes of a row that failed.", TRIAL),
    ] = False
    config: Annotated[
        Path | None,
        Setting(
            options=("--config", "-f"),
            common=True,
            kind=PathName(),
            metavar="FILE",
            help="Read options from a TOML or YAML file; the command line overrides it.",
        ),
    ] = None
    preset: Annotated[
        str | None,
        Setting(
            options=("--preset",),
            common=True,
            kind=Text(),
            metavar="NAME",
            complete=presets.names,
            help="Start from a preset: quick, ci, full or paper; --config overrides it.",
        ),
    ] = None
    name: Annotated[
        str | None,
        Setting(
            options=("--name",),
            common=True,
            kind=Text(),
            metavar="NAME",
            panel=OUTPUT,
            help="Name of the results folder.",
            default_text="the time and the architecture",
        ),
    ] = None
    resume: Annotated[
        bool,
        _flag(
            "--resume",
            "Finish the sweep --name: run only the trials that are missing.",
            common=True,
        ),
    ] = False
    retry: Annotated[
        tuple[str, ...] | None,
        Setting(
            options=("--retry",),
            kind=Choice(tuple(RETRIED)),
            several=True,
            metavar="STATUS,...",
            panel=OUTPUT,
            help="With --resume, run trials again that ended with one of these statuses.",
        ),
    ] = None
    show_config: Annotated[bool, _flag("--show-config", "Print all options as YAML and exit.")] = (
        False
    )
    dry_run: Annotated[
        bool,
        _flag(
            "--dry-run", "Print the plan and an estimate of its duration, and exit.", common=True
        ),
    ] = False
    charts: Annotated[bool, _flag("--charts/--no-charts", "Draw the charts of the report.")] = True
    columns: Annotated[
        str | None,
        Setting(
            options=("--columns",),
            kind=Text(),
            metavar="A,B,C",
            panel=OUTPUT,
            help="Columns of the table, by JSON key; seed: the four of torch-ddp's table.",
        ),
    ] = None
    debug: Annotated[
        bool,
        _flag(
            "--debug", "Make torch.distributed and NCCL log more; recorded with each trial.", TRIAL
        ),
    ] = False
    json_rows: Annotated[
        bool,
        _flag(
            "--json",
            "Print rows as JSON on stdout, and everything else on stderr.",
            argument="json_rows",
        ),
    ] = False
