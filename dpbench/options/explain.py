"""The options of `dpbench explain`."""

from __future__ import annotations

from dpbench.options import shared
from dpbench.options.model import STORED_RESULTS, TRAINING_SCRIPT, Panel
from dpbench.options.shared import DEFAULT_SCRIPT_WARMUP, MIN_SCRIPT_STEPS, is_script
from dpbench.options.types import Count, FilePath, Gpus


class ExplainOptions(shared.RowFilter, shared.Measuring, shared.TrainingScript):
    """Which rows of a sweep are explained, or how a training script is measured that is."""

    results_or_script: FilePath | None = shared.results_option(
        help="Results folder of a sweep, or a training script to measure.", metavar="DIR|SCRIPT"
    )
    verbose: bool = shared.print_option(
        "Also print the phases of a step and how to read the numbers.", names=("-v",)
    )
    gpus: Gpus | None = shared.gpus_option()
    warmup: Count = Panel.MEASUREMENT.option("Warm-up steps.", "N", default=DEFAULT_SCRIPT_WARMUP)
    steps: Count | None = Panel.MEASUREMENT.option(
        "Timed steps.", "N", usual=f"enough for half a second, at least {MIN_SCRIPT_STEPS}"
    )
    threads: Count | None = Panel.MEASUREMENT.option(
        shared.HELP["threads"], "N", usual="OMP_NUM_THREADS, or 1 as under torchrun"
    )

    @property
    def subject(self) -> str:
        """What is explained."""
        is_measured = is_script(str(self.results_or_script), is_module=bool(self.module))
        return TRAINING_SCRIPT if is_measured else STORED_RESULTS
