"""The options of `dpbench explain`."""

from __future__ import annotations

from typing import ClassVar

from pydantic import model_validator

from dpbench.options.bridge import Options, option_name
from dpbench.options.script import FEWEST_STEPS, WARMUP, ScriptArguments
from dpbench.options.shared import (
    HELP,
    MeasuringOptions,
    Repetitions,
    RowFilter,
    gpus_option,
    json_option,
    measurement_option,
    name_option,
    printed,
    refuse_if,
    results_argument,
    time_limit_option,
)
from dpbench.options.types import Count, Duration, FilePath, Gpus


class ScriptRunOptions(MeasuringOptions):
    """How a training script is measured; `dpbench sweep` has all of them."""

    gpus: Gpus | None = gpus_option()
    repetitions: Repetitions = measurement_option(
        4, "Runs of the script on one rank, on copies, on all.", "N"
    )
    warmup: Count = measurement_option(WARMUP, "Warm-up steps.", "N")
    steps: Count | None = measurement_option(
        None, "Timed steps.", "N", usual=f"enough for half a second, at least {FEWEST_STEPS}"
    )
    threads: Count | None = measurement_option(
        None, HELP["threads"], "N", usual="OMP_NUM_THREADS, or 1 as under torchrun"
    )
    time_limit: Duration = time_limit_option("of each run")
    name: str | None = name_option("Name of the results folder.", "the time and the script")


class ExplainOptions(ScriptRunOptions, RowFilter, ScriptArguments):
    """A training script to measure, or the rows of a sweep; and how much to print."""

    first: ClassVar[str] = "folder"
    folder: FilePath | None = results_argument(
        "Results folder of a sweep, or a training script to measure.", "DIR|SCRIPT"
    )
    as_json: bool = json_option("Print one JSON object with all rows.")
    verbose: bool = printed(
        "Also print the phases of a step and how to read the numbers.", names=("--verbose", "-v")
    )

    @model_validator(mode="after")
    def _go_together(self) -> ExplainOptions:
        """Raises UsageError for options that have no effect."""
        self.require_script_or_nothing("a results folder")
        wrong: type[Options] = RowFilter
        reason = (
            "a script has no rows to choose from; for a results folder, name it in the place of "
            "the script"
        )
        if not self.script_words:
            wrong, reason = (
                ScriptRunOptions,
                "it is for measuring a script, as in dpbench explain --gpus 2 train.py; a results "
                "folder is measured already",
            )
        for name in wrong.model_fields.keys() & self.model_fields_set:
            refuse_if(True, f"{option_name(type(self), name)}: {reason}", name)
        return self
