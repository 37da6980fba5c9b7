"""What a check measures, for how long, and how it is judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dpbench.analysis.comparisons.change import ALPHA
from dpbench.analysis.comparisons.matching import Side
from dpbench.analysis.comparisons.verdict import ALPHA_OF_A_LOOK, Verdict, assess
from dpbench.errors import StoreError
from dpbench.messages import option_words
from dpbench.options.check import CheckOptions
from dpbench.options.reading import read_options
from dpbench.options.shared import LARGEST, MeasuredRows
from dpbench.options.sweep import SweepOptions
from dpbench.report.progress.trials import TrialProgress
from dpbench.run.check.interim import interim_analyses
from dpbench.run.results import results_folder
from dpbench.run.sweep.job import Job, host_here
from dpbench.run.sweep.spec import build_sweep_spec
from dpbench.specs.traits import SCRIPT, SINGLE

OF_SWEEP = (
    *(*MeasuredRows.model_fields, "threads", "warmup", "steps"),
    *("repetitions", "time_limit", "oversubscribe"),
)
"""Options of a check that are those of its sweep."""
Sides = list[tuple[Side, Side]]
"""(Baseline, candidate) pairs that are judged together."""


@dataclass(frozen=True, kw_only=True)
class CheckJob:
    """A check that was asked for."""

    options: CheckOptions
    progress: TrialProgress

    @property
    def candidates(self) -> tuple[str, ...]:
        """The implementations that are checked: those given, a script as it is, or the default."""
        is_given = "implementations" in self.options.model_fields_set
        by_script = self.options.script_and_arguments and not is_given
        return (SCRIPT,) if by_script else self.options.implementations

    def sweep_options(self, *against: str) -> SweepOptions:
        """The sweep of the candidates, and of implementations that they are compared with.

        Group sizes that were not asked for are the largest one, unless `single` is measured. Raises
        UsageError.
        """
        asked = self.options
        kept = {*OF_SWEEP}
        if asked.script_and_arguments:
            kept &= {*asked.model_fields_set, "warmup", "steps", "repetitions"}
        given = {name: value for name in kept if (value := getattr(asked, name)) is not None}
        if asked.script_and_arguments:
            given |= {"script": asked.candidate, "arguments": asked.arguments}
            given["module"] = asked.module
        if asked.data_dir is not None:
            given["data_dir"] = asked.data_dir.resolve()  # a revision has another directory
        given["implementations"] = (*self.candidates, *against)
        if SINGLE not in given["implementations"]:
            given.setdefault("group_sizes", (LARGEST,))
        return read_options(SweepOptions, given)

    def plan(self, options: SweepOptions) -> Job:
        """What is to be measured, into a new folder; raises UsageError and StoreError."""
        asked = self.options
        folder = results_folder(asked.results_dir, asked.name, otherwise="check")
        if folder.exists():
            raise StoreError(f"{folder} already exists; choose another {option_words('name')}")
        return plan_check(options, folder, ["check", *asked.command_line()])

    def repetitions(self, sides: Callable[[], Sides]) -> Iterator[int]:
        """Numbers of repetitions to reach, one after the other; `sides` reads what is measured."""
        asked = self.options
        return interim_analyses(
            asked.repetitions, asked.budget, lambda: self.judge(sides()), self.progress.note
        )

    def judge(self, sides: Sides) -> Verdict:
        """Judge the sides by the tolerances. Other environments are what --against-python is
        about."""
        asked = self.options
        return assess(
            sides,
            asked.tolerances,
            force=asked.force or asked.against_python is not None,
            alpha=ALPHA_OF_A_LOOK if asked.baseline is None else ALPHA,
            strict=asked.strict,
        )


def plan_check(options: SweepOptions, folder: Path, command: Sequence[str]) -> Job:
    """The sweep of these options on this machine alone, without what no verdict uses:
    `single`, steps without synchronization and the phases of a step. Raises UsageError."""
    notes = list[str]()
    here = host_here(options, notes)
    spec = build_sweep_spec(options, [here], notes)
    base = replace(spec.base, phase_steps=0, gradient_steps=0, compares_sync=False)
    return Job(
        spec=replace(spec, base=base, measures_single=False),
        nodes=[here],
        folder=folder,
        command=tuple(command),
        data_dir=options.data_dir,
        notes=notes,
    )
