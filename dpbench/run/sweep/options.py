"""The options of `dpbench sweep`, each declared once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from dpbench.records import Status
from dpbench.run import presets
from dpbench.run.shared_options import (
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
from dpbench.specs import AXES, DEFAULTS, SCALINGS, SYSTEM
from dpbench.specs.learning_rate import RULES

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


def _flag(option: str, help: str, panel: str = OUTPUT, argument: str | None = None) -> Setting:
    return Setting(options=(option,), kind=Flag(), panel=panel, help=help, argument=argument)


@dataclass(frozen=True, kw_only=True)
class AxisOptions:
    """Settings that make rows; AUTO is a trial's default."""

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
            help="Timed steps, exactly; auto: as many as --precision takes.",
            default_text="50, or auto with --precision",
        ),
    ] = AUTO
    threads: Annotated[tuple[int, ...] | Auto, _axis("threads_per_replica")] = AUTO
    exclude: Annotated[
        str | None,
        _rules(
            "--exclude",
            "Rows to leave out: those to which all conditions of a rule apply, e.g. "
            "'implementation=dp group_size=4'.",
        ),
    ] = None
    include: Annotated[
        str | None,
        _rules(
            "--include",
            "Rows beyond the grid, e.g. 'implementation=ddp batch_size=256'; of what a rule "
            "leaves open all that the sweep has.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class TrialOptions:
    """What every trial does, and how much of it."""

    scaling: Annotated[
        str,
        Setting(
            options=("--scaling",),
            kind=Choice(SCALINGS),
            metavar="weak|strong",
            help="Keep the batch per replica (weak) or per group (strong).",
        ),
    ] = "weak"
    input_shape: Annotated[
        str | None,
        Setting(
            options=("--input-shape",),
            kind=Text(),
            metavar="N,N",
            panel=TRIAL,
            help="Of a sample, for an --arch that gives only a model.",
        ),
    ] = None
    repetitions: Annotated[
        int | Auto,
        Setting(
            options=("--repetitions",),
            kind=REPETITIONS,
            metavar="N",
            panel=TRIAL,
            help="Repetitions of each row; an even number cancels drift.",
            default_text="4, or from 6 on with --precision",
        ),
    ] = AUTO
    precision: Annotated[
        float | None,
        Setting(
            options=("--precision",),
            kind=Percentage(),
            metavar="P%",
            panel=TRIAL,
            help="Add steps and repetitions until every interval of speed is within ± P %.",
        ),
    ] = None
    budget: Annotated[
        float | Auto,
        Setting(
            options=("--budget",),
            kind=Duration(),
            metavar="TIME",
            panel=TRIAL,
            help="When --precision stops adding repetitions.",
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
            help="How --lr follows the samples behind an optimizer step ÷ --batch-sizes. The "
            "linear rule is for SGD; no warm-up is applied.",
        ),
    ] = "none"
    target_loss: Annotated[
        float | None,
        Setting(
            options=("--target-loss",),
            kind=PositiveNumber(),
            metavar="X",
            panel=TRIAL,
            help="Report the time until the loss stays below X.",
        ),
    ] = None
    phases: Annotated[
        int, _count("--phases", "Steps after the window whose phases are timed; 0 for none.")
    ] = 5
    noise_scale: Annotated[
        int,
        Setting(
            options=("--noise-scale",),
            kind=NoiseBatches(),
            metavar="N",
            panel=TRIAL,
            help="Global batches after the window to estimate the gradient noise scale from, e.g. "
            "50.",
        ),
    ] = 0
    trace: Annotated[
        int,
        _count(
            "--trace",
            "Steps after the window to record with torch's profiler, as a Chrome trace.",
        ),
    ] = 0
    gradient_steps: Annotated[
        int,
        _count(
            "--gradient-steps",
            "Steps after the window that note when each gradient of one replica is ready.",
        ),
    ] = 10
    time_limit: Annotated[
        float,
        Setting(
            options=("--time-limit",),
            kind=Duration(),
            metavar="TIME",
            panel=TRIAL,
            help="Per trial: seconds, or 90s, 5m.",
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
            help="Shuffle the order of the rows.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class SweepOptions(
    FolderOptions, NodeOptions, MachineOptions, TrialOptions, AxisOptions, GridOptions
):
    """Every option of a sweep with its value; the same for the command and for Python calls."""

    sync_backend: Annotated[
        tuple[str, ...] | Auto,
        replace(
            BACKENDS_OPTION,
            options=("--sync-backend",),
            help="Another name for --backends; cpu means shm.",
            default_text=None,
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
            kind=PathName(),
            metavar="FILE",
            help="Options from a TOML or YAML file; what is typed goes before it.",
        ),
    ] = None
    preset: Annotated[
        str | None,
        Setting(
            options=("--preset",),
            kind=Text(),
            metavar="NAME",
            complete=presets.names,
            help="Options that ship: quick, ci, full, paper; --config goes before them.",
        ),
    ] = None
    name: Annotated[
        str | None,
        Setting(
            options=("--name",),
            kind=Text(),
            metavar="NAME",
            panel=OUTPUT,
            help="Folder of this sweep.",
            default_text="the time and the architecture",
        ),
    ] = None
    resume: Annotated[bool, _flag("--resume", "Finish the sweep --name; repeat nothing.")] = False
    retry: Annotated[
        tuple[str, ...] | None,
        Setting(
            options=("--retry",),
            kind=Choice(tuple(RETRIED)),
            several=True,
            metavar="STATUS,...",
            panel=OUTPUT,
            help="With --resume, measure stored trials of this status again: failed, ...",
        ),
    ] = None
    show_config: Annotated[bool, _flag("--show-config", "Print all options as YAML, and end.")] = (
        False
    )
    dry_run: Annotated[bool, _flag("--dry-run", "Print the plan and how long it may take.")] = False
    charts: Annotated[bool, _flag("--charts/--no-charts", "Draw the charts of the report.")] = True
    columns: Annotated[
        str | None,
        Setting(
            options=("--columns",),
            kind=Text(),
            metavar="A,B,C",
            panel=OUTPUT,
            help="Columns of the table, by their JSON keys; 'seed' for torch-ddp's four.",
        ),
    ] = None
    debug: Annotated[
        bool,
        _flag(
            "--debug", "Have torch.distributed and NCCL log more; recorded in each trial.", TRIAL
        ),
    ] = False
    json_rows: Annotated[
        bool,
        _flag("--json", "Rows as JSON on stdout, all else on stderr.", argument="json_rows"),
    ] = False
