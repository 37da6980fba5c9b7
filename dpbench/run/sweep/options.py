"""The options of `dpbench sweep`, each declared once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from dpbench.records.trial import Status
from dpbench.run import presets
from dpbench.run.shared_options import (
    ARCH_OPTION,
    ARCHITECTURE,
    BACKENDS_OPTION,
    CONFIG_OPTION,
    GROWING_STEPS,
    OUTPUT_PANEL,
    REPETITIONS_KIND,
    TRIAL_PANEL,
    FolderOptions,
    GridOptions,
    MachineOptions,
    NodeOptions,
    flag,
    name_option,
    option,
    show_config_option,
)
from dpbench.specs import AXES, DEFAULTS, SYSTEM
from dpbench.specs.settings import (
    AUTO,
    Auto,
    Choice,
    CountOr,
    Parsed,
    Percentage,
    PositiveNumber,
    RowRules,
    Setting,
    Text,
    WholeNumber,
)
from dpbench.specs.workload import LR_RULES
from dpbench.values import duration_seconds

RETRIED = {s.value.replace("_", "-"): s for s in Status if s is not Status.COMPLETED}
"""Statuses of trials that --retry measures again, as it names them."""
AXES_PANEL = "Settings, each a list to compare"
STEPS = 50
"""Default of --steps."""
REPETITIONS, PRECISE_REPETITIONS = 4, 6
"""Defaults of --repetitions, without and with --precision. Even: only whole palindromes cancel a
drift of the machine."""
PRECISION = "1%"
"""Default of --precision, which --steps auto needs."""
BUDGET = "10m"
"""Default of --budget, which goes with --precision."""


def _axis(field: str) -> Setting:
    """The list of values of a setting that a trial has."""
    axis = AXES[field]
    return replace(
        axis,
        decides=(field,),
        several=True,
        panel=AXES_PANEL,
        default_text=axis.default_text
        or (axis.text(DEFAULTS[field]) if field in DEFAULTS else None),
    )


def _count(name: str, field: str, help: str) -> Setting:
    return option(name, WholeNumber(), help, TRIAL_PANEL, decides=(field,), metavar="N")


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
            decides=("timed_steps", "steps_grow"),
            kind=CountOr(GROWING_STEPS),
            metavar="N,N|auto",
            help="Timed steps per trial; auto: as many as --precision needs.",
            default_text=f"{STEPS}, or auto with --precision",
        ),
    ] = AUTO
    threads: Annotated[tuple[int, ...] | Auto, _axis("threads_per_replica")] = AUTO
    exclude: Annotated[
        str | None,
        option(
            "--exclude",
            RowRules(),
            "Rows to leave out, by their settings: 'implementation=dp group_size=4'.",
            AXES_PANEL,
            metavar="RULE,RULE",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class TrialOptions:
    """Options of every trial."""

    repetitions: Annotated[
        int | Auto,
        option(
            "--repetitions",
            REPETITIONS_KIND,
            "Repetitions of each row in fresh processes; an even number cancels drift.",
            TRIAL_PANEL,
            common=True,
            elsewhere="--reps --rep --repeat --repeats --runs -r",
            metavar="N",
            default_text=f"{REPETITIONS}, or from {PRECISE_REPETITIONS} on with --precision",
        ),
    ] = AUTO
    precision: Annotated[
        float | None,
        option(
            "--precision",
            Percentage(),
            "Add steps and repetitions until every throughput is known to within ± P %.",
            TRIAL_PANEL,
            common=True,
            metavar="P%",
        ),
    ] = None
    budget: Annotated[
        float | Auto,
        option(
            "--budget",
            Parsed(duration_seconds),
            "Time after which --precision adds no more repetitions.",
            TRIAL_PANEL,
            decides=("budget_seconds",),
            metavar="TIME",
            default_text=f"{BUDGET} with --precision",
        ),
    ] = AUTO
    lr_scaling: Annotated[
        str,
        option(
            "--lr-scaling",
            Choice(LR_RULES),
            "Scale --lr with the samples per optimizer step; linear is meant for SGD.",
            TRIAL_PANEL,
            metavar="none|linear|sqrt",
        ),
    ] = "none"
    target_loss: Annotated[
        float | None,
        option(
            "--target-loss",
            PositiveNumber(),
            "Report the time until the loss stays below this value.",
            TRIAL_PANEL,
            metavar="X",
        ),
    ] = None
    phases: Annotated[
        int,
        _count("--phases", "phase_steps", "Extra steps that are timed phase by phase; 0: none."),
    ] = 5
    trace: Annotated[
        int,
        _count(
            "--trace",
            "trace_steps",
            "Extra steps to record with torch's profiler as a Chrome trace; 0: none.",
        ),
    ] = 0
    gradient_steps: Annotated[
        int,
        _count(
            "--gradient-steps",
            "gradient_steps",
            "Extra steps that record when each gradient is ready; 0: none.",
        ),
    ] = 10
    time_limit: Annotated[
        float,
        option(
            "--time-limit",
            Parsed(duration_seconds),
            "Time limit of each trial.",
            TRIAL_PANEL,
            decides=("time_limit_seconds",),
            metavar="TIME",
            typed_default="5m",
        ),
    ] = 300.0


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
            instead_of="backends",
            default_text=None,
            common=False,
            elsewhere="",
        ),
    ] = AUTO
    stop_after_failure: Annotated[
        bool,
        flag(
            "--stop-after-failure",
            "Skip the larger group sizes of a row that failed.",
            TRIAL_PANEL,
            scope="node",
        ),
    ] = False
    config: Annotated[Path | None, replace(CONFIG_OPTION, in_python=False)] = None
    preset: Annotated[
        str | None,
        option(
            "--preset",
            Text(),
            "Start from a preset: quick, ci, full or paper; other options override it.",
            scope="call",
            common=True,
            metavar="NAME",
            complete=presets.names,
        ),
    ] = None
    name: Annotated[
        str | None,
        name_option(
            "Name of the results folder.",
            OUTPUT_PANEL,
            "the time and the architecture",
            common=True,
        ),
    ] = None
    resume: Annotated[
        bool,
        flag(
            "--resume",
            "Finish the sweep --name: run only the trials that are missing.",
            OUTPUT_PANEL,
            scope="call",
            common=True,
        ),
    ] = False
    retry: Annotated[
        tuple[str, ...] | None,
        option(
            "--retry",
            Choice(tuple(RETRIED)),
            "With --resume, run trials again that ended with one of these statuses.",
            OUTPUT_PANEL,
            scope="call",
            several=True,
            metavar="STATUS,...",
        ),
    ] = None
    show_config: Annotated[bool, show_config_option(OUTPUT_PANEL)] = False
    dry_run: Annotated[
        bool,
        flag(
            "--dry-run",
            "Print the plan and an estimate of its duration, and exit.",
            OUTPUT_PANEL,
            scope="call",
            in_python=False,
            common=True,
        ),
    ] = False
    charts: Annotated[
        bool,
        flag("--charts/--no-charts", "Draw the charts of the report.", OUTPUT_PANEL, scope="node"),
    ] = True
    columns: Annotated[
        str | None,
        option(
            "--columns",
            Text(),
            "Columns of the table, by JSON key; seed: the four of torch-ddp's table.",
            OUTPUT_PANEL,
            scope="call",
            in_python=False,
            metavar="A,B,C",
        ),
    ] = None
    debug: Annotated[
        bool,
        flag(
            "--debug",
            "Make torch.distributed and NCCL log more; recorded with each trial.",
            TRIAL_PANEL,
            in_python=False,
        ),
    ] = False
    json_rows: Annotated[
        bool,
        flag(
            "--json",
            "Print rows as JSON on stdout, and everything else on stderr.",
            OUTPUT_PANEL,
            scope="call",
            in_python=False,
            argument="json_rows",
        ),
    ] = False
