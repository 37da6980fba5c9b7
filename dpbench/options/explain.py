"""The options of `dpbench explain`."""

from __future__ import annotations

from dpbench.options import shared
from dpbench.options.model import Panel, Subject, option
from dpbench.options.script import DEFAULT_SCRIPT_WARMUP, MIN_SCRIPT_STEPS, TrainingScript
from dpbench.options.types import Count, FilePath, Gpus


class ExplainOptions(shared.Measuring, shared.RowFilter, TrainingScript):
    """A training script to measure, or the rows of a sweep; and how much to print."""

    subjects = (Subject.RESULTS, Subject.SCRIPT)
    named_by = "results_or_script"
    gpus: Gpus | None = option(shared.HELP["gpus"], "N|I,J", usual="all, or one per core")
    warmup: Count = Panel.MEASUREMENT.option("Warm-up steps.", "N", default=DEFAULT_SCRIPT_WARMUP)
    steps: Count | None = Panel.MEASUREMENT.option(
        "Timed steps.", "N", usual=f"enough for half a second, at least {MIN_SCRIPT_STEPS}"
    )
    threads: Count | None = Panel.MEASUREMENT.option(
        shared.HELP["threads"], "N", usual="OMP_NUM_THREADS, or 1 as under torchrun"
    )
    results_or_script: FilePath | None = shared.results_option(
        help="Results folder of a sweep, or a training script to measure.", metavar="DIR|SCRIPT"
    )
    verbose: bool = shared.print_option(
        "Also print the phases of a step and how to read the numbers.", names=("-v",)
    )
