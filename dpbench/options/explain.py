"""The options of `dpbench explain`."""

from __future__ import annotations

from typing import ClassVar

from pydantic import model_validator

from dpbench.messages import option_words
from dpbench.options.model import refuse_if
from dpbench.options.script import DEFAULT_SCRIPT_WARMUP, MIN_STEPS, TrainingScript
from dpbench.options.shared import (
    HELP,
    Measuring,
    RowFilter,
    gpus_option,
    measurement_option,
    print_option,
    results_argument,
)
from dpbench.options.types import Count, FilePath, Gpus

SCRIPT_MEASURING_OPTIONS = frozenset(
    {*Measuring.model_fields, "gpus", "warmup", "steps", "threads"} - {"as_json"}
)
"""Options of measuring a script; `dpbench sweep` has all of them."""


class ExplainOptions(Measuring, RowFilter, TrainingScript):
    """A training script to measure, or the rows of a sweep; and how much to print."""

    named_by: ClassVar[str] = "folder"
    gpus: Gpus | None = gpus_option()
    warmup: Count = measurement_option(DEFAULT_SCRIPT_WARMUP, "Warm-up steps.", "N")
    steps: Count | None = measurement_option(
        None, "Timed steps.", "N", usual=f"enough for half a second, at least {MIN_STEPS}"
    )
    threads: Count | None = measurement_option(
        None, HELP["threads"], "N", usual="OMP_NUM_THREADS, or 1 as under torchrun"
    )
    folder: FilePath | None = results_argument(
        "Results folder of a sweep, or a training script to measure.", "DIR|SCRIPT"
    )
    verbose: bool = print_option(
        "Also print the phases of a step and how to read the numbers.", also=("-v",)
    )

    @model_validator(mode="after")
    def _go_together(self) -> ExplainOptions:
        """Raise UsageError for options that have no effect."""
        self.require_script_or_nothing()
        wrong = SCRIPT_MEASURING_OPTIONS
        reason = "it is for measuring a script; a results folder is measured already"
        if self.script_and_arguments:
            wrong = frozenset(RowFilter.model_fields)
            reason = "a script has no rows to choose from; for a results folder, name it instead"
        for name in wrong & self.model_fields_set:
            refuse_if(True, f"{option_words(name)}: {reason}")
        return self
