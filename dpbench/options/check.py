"""The options of `dpbench check`: those of a sweep, and its own."""

from __future__ import annotations

import shlex
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, PlainSerializer, TypeAdapter, model_validator

from dpbench.errors import UsageError
from dpbench.messages import in_python, option_words
from dpbench.options import shared
from dpbench.options.model import ALL_SUBJECTS, Panel, option
from dpbench.options.script import TrainingScript
from dpbench.options.types import (
    ArchitectureList,
    CommaList,
    Count,
    Duration,
    FilePath,
    MetricKey,
    Number,
    OutputFile,
    Percent,
)
from dpbench.specs import MAX_REPETITIONS
from dpbench.specs.traits import SCRIPT

BASELINES = ("baseline", "against", "against_ref", "against_python")
"""Options that name what the candidate is compared with."""


def _metric_and_tolerance(text: Any) -> tuple[str, float | None]:
    """The metric and its own tolerance, or None, of NAME[=P%]."""
    name, equals, tolerance = str(text).partition("=")
    metric = TypeAdapter(MetricKey).validate_python(name.strip())
    return metric, TypeAdapter(Percent).validate_python(tolerance) if equals else None


JudgedMetric = Annotated[
    tuple[str, float | None],
    BeforeValidator(_metric_and_tolerance, json_schema_input_type=str),
    PlainSerializer(
        lambda one: one[0] if one[1] is None else f"{one[0]}={100 * one[1]:.12g}%", when_used="json"
    ),
]


class CheckOptions(shared.Measuring, shared.MeasuredRows, TrainingScript):
    """Every option of `dpbench check`: few rows by default, and a fixed number of steps."""

    named_by: ClassVar[str] = "candidate"
    arch: Annotated[ArchitectureList, Field(max_length=1)] = option(
        (shared.DEFAULT_ARCHITECTURE,), shared.HELP["arch"], "NAME"
    )
    implementations: CommaList[shared.ImplementationName] = option(
        ("ddp",), "Implementations; with --against, ddp.", "A,B", usual="torch-ddp"
    )
    batch_sizes: CommaList[Count] = option((64,), "Samples per replica.", "N,N")
    group_sizes: CommaList[Count] | None = option(
        None, "Numbers of replicas to measure.", "N,N", usual="largest"
    )
    threads: Count | None = Panel.SETTINGS.option(
        None, shared.HELP["threads"], "N", usual=shared.USUAL_THREADS
    )
    warmup: Number = Panel.SETTINGS.option(10, "Warm-up steps.", "N")
    steps: Count = Panel.SETTINGS.option(50, "Timed steps.", "N")
    tolerance: Percent = option(0.03, "Slowdown to accept.", "P%", usual="3%", affects=ALL_SUBJECTS)
    metric: CommaList[JudgedMetric] = Panel.VERDICT.option(
        (("images_per_second", None),),
        "Metric, e.g. peak_memory_bytes=5%; may be repeated.",
        "NAME[=P%]",
        usual="images_per_second",
        repeated=True,
        affects=ALL_SUBJECTS,
    )
    strict: bool = Panel.VERDICT.option(
        False, "Fail if the verdict is inconclusive.", affects=ALL_SUBJECTS
    )
    force: bool = Panel.VERDICT.option(
        False, "Compare even if the environments differ.", affects=ALL_SUBJECTS
    )
    repetitions: Annotated[int, Field(ge=2, le=MAX_REPETITIONS)] = Panel.MEASUREMENT.option(
        5, "Initial runs of each row; more while inconclusive.", "N"
    )
    budget: Duration = Panel.MEASUREMENT.option(
        300.0, "Time after which no runs are added.", "TIME", usual="5m"
    )
    candidate: str | None = option(
        None,
        "Stored sweep to check, with --baseline; or a training script to measure.",
        "CANDIDATE|SCRIPT",
        argument=True,
        affects=ALL_SUBJECTS,
    )
    baseline: str | None = option(
        None, "Stored sweep to compare CANDIDATE with.", "DIR", affects=ALL_SUBJECTS
    )
    against: shared.ImplementationName | None = option(
        None, "Compare with this implementation.", "NAME"
    )
    against_ref: str | None = option(None, "Compare with this Git revision of your code.", "REV")
    against_python: FilePath | None = option(
        None, "Compare with this Python and its packages.", "PATH"
    )
    config: FilePath | None = shared.config_option()
    junit: OutputFile | None = Panel.OUTPUT.option(
        None, "Write the verdict as JUnit XML.", "FILE", affects=ALL_SUBJECTS
    )
    markdown: OutputFile | None = Panel.OUTPUT.option(
        None, "Write the verdict as Markdown.", "FILE", affects=ALL_SUBJECTS
    )

    @property
    def candidates(self) -> tuple[str, ...]:
        """The implementations that are checked: those given, a script as it is, dpbench's ddp
        against another one, or what most people train with."""
        if "implementations" in self.model_fields_set:
            return self.implementations
        if self.script_and_arguments:
            return (SCRIPT,)
        return ("torch-ddp",) if self.against is None else self.implementations

    @property
    def tolerances(self) -> dict[str, float]:
        """The accepted slowdown of each metric: 0.03 for 3 %."""
        return {name: self.tolerance if own is None else own for name, own in self.metric}

    @property
    def _example(self) -> str:
        """What to type, or to call, for a comparison with the last commit."""
        against = option_words("against_ref", "HEAD")
        if in_python():
            return f"dpbench.check(…, {against})"
        words = self.command_line(*BASELINES)
        if not (self.script_and_arguments or "arch" in self.model_fields_set):
            words += ["--arch", "model.py:make"]
        return f"dpbench check {against} {shlex.join(words)}"

    @model_validator(mode="after")
    def _go_together(self) -> CheckOptions:
        """Raise UsageError unless there is one thing to compare with, and for options that have no
        effect."""
        self.require_script_or_nothing()
        if len(self.tolerances) < len(self.metric):
            raise UsageError(f"{option_words('metric')}: expected each metric once")
        stored = None if self.script_and_arguments else self.candidate
        given = [name for name in BASELINES if getattr(self, name) is not None]
        got = [option_words(name, getattr(self, name)) for name in given]
        is_stored = stored is not None or "baseline" in given
        if is_stored and (stored is None or given != ["baseline"]):
            got += [f"the candidate {stored or self.candidate}"] * (self.candidate is not None)
            raise UsageError(
                f"got {' and '.join(got)}; expected a candidate and a baseline that are results "
                f"folders{'' if in_python() else ': dpbench check CANDIDATE --baseline DIR'}"
            )
        if len(given) != 1:
            raise UsageError(
                f"got {' and '.join(got) or 'nothing to compare with'}; expected one of "
                f"{option_words('against_ref', 'REV')} (your code at a Git revision), "
                f"{option_words('against_python', 'PATH')} (another environment) and "
                f"{option_words('against', 'NAME')} (another implementation), as in "
                f"{self._example}"
            )
        if is_stored:
            self.require_effect("results", f"no effect, as {stored} is stored; leave it out")
        return self
