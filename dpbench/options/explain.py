"""The options of `dpbench explain`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpbench.options import shared
from dpbench.options.model import Options, Panel
from dpbench.options.shared import DEFAULT_SCRIPT_WARMUP, MIN_SCRIPT_STEPS, is_script
from dpbench.options.types import Count, FilePath, Gpus


class Explained(Options):
    """What is explained, and how much is printed."""

    results_or_script: FilePath | None = shared.results_option(
        help="Results folder of a sweep, or a training script to measure.", metavar="DIR|SCRIPT"
    )
    verbose: bool = shared.print_option(
        "Also print the phases of a step and how to read the numbers.", names=("-v",)
    )
    quiet: bool = shared.quiet_option()
    as_json: bool = shared.json_option()


class ExplainResults(Explained, shared.RowFilter):
    """The rows of a sweep that are explained."""

    subject = "stored results"


class ExplainScript(Explained, shared.Measuring, shared.TrainingScript):
    """How a training script is measured that is explained."""

    subject = "a training script"
    gpus: Gpus | None = shared.gpus_option()
    warmup: Count = Panel.MEASUREMENT.option("Warm-up steps.", "N", default=DEFAULT_SCRIPT_WARMUP)
    steps: Count | None = Panel.MEASUREMENT.option(
        "Timed steps.", "N", usual=f"enough for half a second, at least {MIN_SCRIPT_STEPS}"
    )
    threads: Count | None = Panel.MEASUREMENT.option(
        shared.HELP["threads"], "N", usual="OMP_NUM_THREADS, or 1 as under torchrun"
    )


class ExplainOptions(ExplainResults, ExplainScript):
    """Every option of `dpbench explain`, for its help; one of its two parts reads a call."""

    @classmethod
    def model_for(cls, values: Mapping[str, Any]) -> Any:
        named = str(values.get("results_or_script"))
        is_measured = is_script(named, is_module=bool(values.get("module")))
        return ExplainScript if is_measured else ExplainResults
