"""The options of `dpbench explain`."""

from __future__ import annotations

from dpbench.options import shared
from dpbench.options.model import Panel, Subject
from dpbench.options.shared import DEFAULT_SCRIPT_WARMUP, MIN_SCRIPT_STEPS, is_script
from dpbench.options.types import Count, FilePath, Gpus


class ExplainOptions(shared.RowFilter, shared.Measuring, shared.TrainingScript):
    """Which rows of a sweep are explained, or how a training script is measured that is."""

    results_or_script: FilePath | None = Panel.ARGUMENTS.option(
        "Results folder of a sweep, or a training script to measure.",
        "DIR|SCRIPT",
        usual="the latest in results/",
    )
    verbose: bool = Panel.OUTPUT.option(
        "Also print the phases of a step and how to read the numbers.", names=("-v",), printed=True
    )
    gpus: Gpus | None = shared.GPUS
    warmup: Count = Panel.MEASUREMENT.option("Warm-up steps.", "N", default=DEFAULT_SCRIPT_WARMUP)
    steps: Count | None = Panel.MEASUREMENT.option(
        "Timed steps.", "N", usual=f"enough for half a second, at least {MIN_SCRIPT_STEPS}"
    )
    threads: Count | None = Panel.MEASUREMENT.option(
        "CPU threads per replica.", "N", usual="OMP_NUM_THREADS, or 1 as under torchrun"
    )

    @property
    def subject(self) -> Subject:
        """What is explained."""
        is_measured = is_script(str(self.results_or_script), is_module=self.module)
        return Subject.SCRIPT if is_measured else Subject.RESULTS
