"""Options of a command that measures a training script: what is the script's follows its name."""

from __future__ import annotations

from dpbench.options.bridge import Options, option
from dpbench.options.shared import (
    MEASUREMENT_PANEL,
    THREADS_HELP,
    FolderOptions,
    GpuOptions,
    MachineOptions,
    Repetitions,
    name_option,
)
from dpbench.options.types import Count, Duration

FEWEST_STEPS = 20
"""Fewest steps that are timed as they are: two segments of a round."""


class ScriptOptions(FolderOptions, MachineOptions, GpuOptions, Options):
    """How a training script is measured."""

    panel = MEASUREMENT_PANEL
    repetitions: Repetitions = option(4, "Runs of the script on one rank, on copies, on all.", "N")
    warmup: Count = option(10, "Warm-up steps.", "N")
    steps: Count | None = option(
        None, "Timed steps.", "N", usual=f"enough for one second, at least {FEWEST_STEPS}"
    )
    threads: Count | None = option(
        None, THREADS_HELP, "N", usual="OMP_NUM_THREADS, or 1 as under torchrun"
    )
    time_limit: Duration = option(300.0, "Time limit of each run.", "TIME", usual="5m")
    name: str | None = name_option("Name of the results folder.", "the time and the script")
