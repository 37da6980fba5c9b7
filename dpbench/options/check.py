"""The options of `dpbench check`: those of a sweep, and its own."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from functools import partial
from typing import Annotated, ClassVar

from pydantic import Field

from dpbench.errors import UsageError
from dpbench.options.bridge import option, option_name
from dpbench.options.script import ScriptArguments
from dpbench.options.shared import (
    ARCHITECTURE,
    BATCH_NAMES,
    GROUP_NAMES,
    HELP,
    USUAL_THREADS,
    MeasuredImplementation,
    MeasuringOptions,
    RowOptions,
    config_option,
    json_option,
    measurement_option,
    name_option,
    output_option,
    refuse_if,
    setting,
)
from dpbench.options.types import CodeList, CommaList, Count, Duration, FilePath, Number, Percent
from dpbench.specs import MOST_REPETITIONS

verdict_option = partial(option, panel="Verdict")
BASELINES = ("baseline", "against", "against_ref", "against_python")
"""Options that name what the candidate is compared with."""
OF_STORED = (
    *("candidate", "baseline", "force", "strict", "tolerance", "metric"),
    *("junit", "markdown", "as_json", "quiet", "config"),
)
"""Options that have an effect where nothing is measured."""


class CheckOptions(MeasuringOptions, RowOptions, ScriptArguments):
    """Every option of `dpbench check`: few rows by default, and a fixed number of steps."""

    first: ClassVar[str] = "candidate"
    arch: Annotated[CodeList, Field(max_length=1)] = option((ARCHITECTURE,), HELP["arch"], "NAME")
    implementations: CommaList[MeasuredImplementation] = option(
        ("ddp",),
        "Implementations to check.",
        "A,B",
        names=("--implementations", "--implementation"),
    )
    batch_sizes: CommaList[Count] = option((64,), "Samples per replica.", "N,N", names=BATCH_NAMES)
    group_sizes: CommaList[Count] | None = option(
        None, "Numbers of replicas to measure.", "N,N", names=GROUP_NAMES, usual="largest"
    )
    threads: Count | None = setting(None, HELP["threads"], "N", usual=USUAL_THREADS)
    warmup: Number = setting(10, "Warm-up steps.", "N")
    steps: Count = setting(50, "Timed steps.", "N")
    tolerance: Percent = option(0.03, "Slowdown to accept.", "P%", usual="3%")
    metric: CommaList[str] = verdict_option(
        ("images_per_second",),
        "Metric, e.g. peak_memory_bytes=5%; may be repeated.",
        "NAME[=P%]",
        repeated=True,
    )
    strict: bool = verdict_option(
        False, "Fail if the verdict, or that of any row, is inconclusive."
    )
    force: bool = verdict_option(False, "Compare even if the environments differ.")
    repetitions: Annotated[int, Field(ge=2, le=MOST_REPETITIONS)] = measurement_option(
        5, "Initial runs of each row; more while inconclusive.", "N"
    )
    budget: Duration = measurement_option(
        300.0, "Time after which no runs are added.", "TIME", usual="5m"
    )
    candidate: str | None = option(
        None,
        "Stored sweep to check, with --baseline; or a training script to measure.",
        "CANDIDATE|SCRIPT",
        argument=True,
    )
    baseline: str | None = option(None, "Stored sweep to compare CANDIDATE with.", "DIR")
    against: str | None = option(None, "Compare with this implementation.", "NAME")
    against_ref: str | None = option(None, "Compare with this Git revision of your code.", "REV")
    against_python: FilePath | None = option(
        None, "Compare with this Python, which has another torch or other packages.", "PATH"
    )
    config: FilePath | None = config_option()
    name: str | None = name_option("Name of the results folder.", "the time and the command")
    as_json: bool = json_option("Print the verdict as JSON on stdout.")
    junit: FilePath | None = output_option(None, "Write the verdict as JUnit XML.", "FILE")
    markdown: FilePath | None = output_option(None, "Write the verdict as Markdown.", "FILE")

    def require_one_baseline(self, typed: Collection[str]) -> None:
        """Raises UsageError unless there is one thing to compare with, and for `typed` options that
        would have no effect."""
        self.require_script_or_nothing("a results folder")
        stored = None if self.script_words else self.candidate
        given = [name for name in BASELINES if getattr(self, name) is not None]
        is_stored = given == ["baseline"]
        if len(given) != 1 or is_stored != (stored is not None):
            words = [f"{option_name(CheckOptions, name)} {getattr(self, name)}" for name in given]
            script = f" {shlex.join(self.script_words)}" if self.script_words else ""
            subject = f"{script or f' {stored}'} with" if script or stored else ""
            against = "script --implementations ddp" if script else "NAME"
            raise UsageError(
                f"got {' '.join(words) or 'nothing'} to compare{subject}; expected one of "
                f"--against-ref REV{script} (your code at a Git revision), --against-python "
                f"PATH{script} (another environment), --against {against}{script} (an "
                "implementation) and DIR --baseline DIR (stored results)"
            )
        reason = f"{stored} is stored" if is_stored else "both sides are measured here"
        wrong = {*typed} - {*OF_STORED} if is_stored else {*typed} & {"force"}
        for name in sorted(wrong):
            shown = option_name(CheckOptions, name)
            refuse_if(True, f"{shown} has no effect, as {reason}; leave it out", name)
