"""The options of `dpbench check`: those of a sweep, and its own."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, WrapSerializer, model_validator

from dpbench.errors import UsageError
from dpbench.messages import option_words
from dpbench.options import shared
from dpbench.options.model import Panel, Subject
from dpbench.options.shared import ImplementationName, is_script
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
from dpbench.specs.sweep import MAX_REPETITIONS
from dpbench.specs.traits import SCRIPT


def _metric_and_tolerance(text: Any) -> tuple[str, str | None]:
    """The two parts of NAME[=P%]."""
    name, equals, tolerance = str(text).partition("=")
    return name.strip(), tolerance if equals else None


JudgedMetric = Annotated[
    tuple[MetricKey, Percent | None],
    BeforeValidator(_metric_and_tolerance, json_schema_input_type=str),
    WrapSerializer(lambda metric, parts: "=".join(filter(None, parts(metric))), when_used="json"),
]
"""A metric and its own tolerance, or None."""


class CheckOptions(shared.Measuring, shared.MeasuredRows, shared.TrainingScript):
    """What is compared, and how it is judged and measured: few rows, in a fixed number of steps."""

    tolerance: Percent = Panel.OPTIONS.option("Slowdown to accept.", "P%", default=0.03)
    metric: CommaList[JudgedMetric] = Panel.VERDICT.option(
        "Metric, e.g. peak_memory_bytes=5%; may be repeated.",
        "NAME[=P%]",
        default=(("images_per_second", None),),
        repeated=True,
    )
    strict: bool = Panel.VERDICT.option("Fail if the verdict is inconclusive.")
    force: bool = Panel.VERDICT.option("Compare even if the environments differ.")
    candidate: str | None = Panel.ARGUMENTS.option(
        "Stored sweep to check, with --baseline; or a training script to measure.",
        "CANDIDATE|SCRIPT",
    )
    baseline: str | None = Panel.OPTIONS.option("Stored sweep to compare CANDIDATE with.", "DIR")
    against: ImplementationName | None = Panel.OPTIONS.option(
        "Compare with this implementation.", "NAME"
    )
    against_ref: str | None = Panel.OPTIONS.option(
        "Compare with this Git revision of your code.", "REV"
    )
    against_python: FilePath | None = Panel.OPTIONS.option(
        "Compare with this Python and its packages.", "PATH"
    )
    junit: OutputFile | None = Panel.OUTPUT.option("Write the verdict as JUnit XML.", "FILE")
    markdown: OutputFile | None = Panel.OUTPUT.option("Write the verdict as Markdown.", "FILE")
    arch: Annotated[ArchitectureList, Field(max_length=1)] = Panel.OPTIONS.option(
        "Model: a name from 'dpbench list', or file.py:function.",
        "NAME",
        default=(shared.DEFAULT_ARCHITECTURE,),
        subjects=Subject.MODEL,
    )
    implementations: CommaList[ImplementationName] | None = Panel.OPTIONS.option(
        "Implementations; with --against, ddp.", "A,B", usual="torch-ddp", subjects=Subject.MEASURED
    )
    batch_sizes: CommaList[Count] = Panel.OPTIONS.option(
        "Samples per replica.", "N,N", default=(64,), subjects=Subject.MEASURED
    )
    group_sizes: shared.GroupSizes | None = Panel.OPTIONS.option(
        "Numbers of replicas; max: all --gpus.", "N,N", usual="max", subjects=Subject.MEASURED
    )
    threads: Count | None = Panel.SETTINGS.option(
        "CPU threads per replica.", "N", usual=shared.USUAL_THREADS
    )
    warmup: Number = Panel.SETTINGS.option("Warm-up steps.", "N", default=10)
    steps: Count = Panel.SETTINGS.option("Timed steps.", "N", default=50)
    repetitions: Annotated[Count, Field(ge=2, le=MAX_REPETITIONS)] = Panel.MEASUREMENT.option(
        "Initial runs of each row; more while inconclusive.", "N", default=5
    )
    budget: Duration = Panel.MEASUREMENT.option(
        "Time after which no runs are added.", "TIME", default=300.0, usual="5m"
    )
    config: FilePath | None = shared.CONFIG_FILE

    @property
    def subject(self) -> Subject:
        """What is checked."""
        if is_script(str(self.candidate), is_module=self.module):
            return Subject.SCRIPT
        return Subject.MODEL if self.candidate is None else Subject.RESULTS

    @property
    def tolerances(self) -> dict[str, float]:
        """The accepted slowdown of each metric: 0.03 for 3 %."""
        return {name: self.tolerance if own is None else own for name, own in self.metric}

    @property
    def measured_implementations(self) -> tuple[str, ...]:
        """The implementations that are checked: those given, a script as it is, dpbench's ddp
        against another one, or what most people train with."""
        usual = "ddp" if self.against else "torch-ddp"
        return self.implementations or (usual if self.candidate is None else SCRIPT,)

    @model_validator(mode="after")
    def _names_one_baseline(self) -> Self:
        """Raise UsageError unless there is one thing to compare with, and an implementation is
        compared with another one."""
        if len(self.tolerances) < len(self.metric):
            raise UsageError("--metric: expected each metric once")
        baselines = ("baseline", "against_ref", "against_python", "against")
        given = [name for name in baselines if getattr(self, name) is not None]
        is_stored = self.subject is Subject.RESULTS
        if len(given) != 1 or is_stored != (given == ["baseline"]):
            got = [option_words(name, getattr(self, name)) for name in given]
            if self.candidate is not None:
                got.append(f"the candidate {self.candidate}")
            raise UsageError(
                f"got {' and '.join(got) or 'nothing to compare with'}; expected one of "
                "--against-ref REV (your code at a Git revision), --against-python PATH (another "
                "environment) and --against NAME (another implementation), or two stored sweeps: "
                "dpbench check CANDIDATE --baseline DIR"
            )
        checked = self.measured_implementations
        if self.against is not None and (len(checked) > 1 or self.against in checked):
            raise UsageError(
                f"--against {self.against}: expected one other implementation in "
                f"{option_words('implementations', checked)}"
            )
        return self
