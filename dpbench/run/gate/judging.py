"""Measures what `dpbench check` compares, unless it is stored, and judges it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from dpbench import store
from dpbench.analysis.comparisons.change import ALPHA
from dpbench.analysis.comparisons.matching import Side
from dpbench.analysis.comparisons.verdict import ALPHA_OF_A_LOOK, Verdict, assess
from dpbench.analysis.metrics import COMPARED_METRICS
from dpbench.errors import INCONCLUSIVE, NotComparable, StoreError, UsageError
from dpbench.options.bridge import read_options, read_value
from dpbench.options.check import CheckOptions
from dpbench.options.shared import LARGEST, RowOptions
from dpbench.options.sweep import SweepOptions
from dpbench.options.types import Percent, one_of
from dpbench.records.trial import Status
from dpbench.report.progress.trials import TrialProgress
from dpbench.run.gate.looks import looks
from dpbench.run.results import load_sides, results_folder, split_selection
from dpbench.run.sweep.job import Job, job_here
from dpbench.run.sweep.measuring import exit_status, measure
from dpbench.specs.traits import IMPLEMENTATIONS, SCRIPT, SINGLE

PASS, REGRESSED, WRONG_GRADIENTS = 0, 3, 6
TWO_SWEEPS = (
    "two sweeps: what changed on the machine between them counts as a change; --against-ref REV "
    "measures both versions of your code in turn"
)
MEASURED = (*RowOptions.model_fields, "threads", "warmup", "steps", "oversubscribe")
"""Options of a check that say what is measured."""
Sides = list[tuple[Side, Side]]
"""(Baseline, candidate) pairs that are judged together."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """A check that was asked for."""

    options: CheckOptions
    progress: TrialProgress
    tolerances: Mapping[str, float]
    """The accepted slowdown of each metric: 0.03 for 3 %."""

    def describe(self) -> str:
        """The tolerances, for the reader of a failed check's log."""
        shares = self.tolerances.items()
        held = ", ".join(f"{metric} {100 * share:.3g} %" for metric, share in shares)
        return f"tolerance: {held}; {'strict' if self.options.strict else 'not strict'}"

    def judge(self, sides: Sides) -> Verdict:
        """Judge the sides by the tolerances. Other environments are what --against-python is
        about."""
        options = self.options
        return assess(
            sides,
            self.tolerances,
            force=options.force or options.against_python is not None,
            alpha=ALPHA_OF_A_LOOK if options.baseline is None else ALPHA,
            strict=options.strict,
        )

    def looks(self, sides: Callable[[], Sides]) -> Iterator[int]:
        """Numbers of repetitions to reach, one after the other; `sides` reads what is measured."""
        options, note = self.options, self.progress.note
        return looks(options.repetitions, options.budget, lambda: self.judge(sides()), note)

    def new_folder(self) -> Path:
        """A folder that does not exist yet; raises StoreError if one of that --name does."""
        folder = results_folder(self.options.results_dir, self.options.name, otherwise="check")
        if folder.exists():
            raise StoreError(f"{folder} already exists; choose another --name")
        return folder

    @property
    def candidates(self) -> tuple[str, ...]:
        """The implementations that are checked: those given, a script as it is, or the default."""
        is_given = "implementations" in self.options.model_fields_set
        by_script = self.options.script_words and not is_given
        return (SCRIPT,) if by_script else self.options.implementations

    def sweep(self, *against: str) -> SweepOptions:
        """The sweep of the candidates, and of implementations that they are compared with.

        Group sizes that were not asked for are the largest one, unless `single` is asked for; it is
        measured only then. Raises UsageError.
        """
        asked = self.options
        given = {name: getattr(asked, name) for name in MEASURED}
        if asked.script_words:
            kept = {*asked.model_fields_set, "warmup", "steps"}
            given = {name: value for name, value in given.items() if name in kept}
            given["script"] = asked.candidate
            given |= {"arguments": asked.arguments, "module": asked.module}
        if asked.data_dir is not None:
            given["data_dir"] = asked.data_dir.resolve()  # a revision has another directory
        given["repetitions"] = asked.repetitions
        given["implementations"] = (*self.candidates, *against)
        if SINGLE not in given["implementations"]:
            given |= {"single": False, "group_sizes": asked.group_sizes or (LARGEST,)}
        measured = {name: value for name, value in given.items() if value is not None}
        return read_options(SweepOptions, measured)

    def job(self, options: SweepOptions) -> Job:
        """What is to be measured, into a new folder; raises UsageError and StoreError."""
        return job_here(options, self.new_folder(), ["check", *self.options.words()])


def tolerances_of(options: CheckOptions) -> dict[str, float]:
    """The tolerance of each metric; raises UsageError for a metric that cannot be used."""
    tolerances: dict[str, float] = {}
    for entry in (part for text in options.metric for part in text.split(",")):
        name, has_own, own = entry.partition("=")
        metric = read_value(
            "--metric", Annotated[str, one_of(tuple(COMPARED_METRICS))], name.strip()
        )
        if metric in tolerances:
            raise UsageError(f"--metric: {metric} is listed twice; give it one tolerance")
        tolerances[metric] = (
            read_value(f"--metric {metric}", Percent, own) if has_own else options.tolerance
        )
    return tolerances


def stored_sides(candidate: str, baseline: str) -> tuple[Sides, list[str]]:
    """Stored results, both folders or parts of them, as in compare; and notes on them.

    Raises NotComparable if there is no baseline, as before the first run of a CI job.
    """
    folder = split_selection(baseline)[0]
    if not (store.holds_sweep(folder) or folder.is_file()):
        raise NotComparable(f"--baseline {baseline}: {folder} has no sweep to compare with")
    (before, now), warnings = load_sides(baseline, candidate)
    notes = [TWO_SWEEPS] if before.source != now.source else []
    return [(before, now)], [*warnings, *notes]


def measure_implementations(check: Check, against: str) -> Sides:
    """Measure the candidates and another implementation in turn, in one sweep."""
    read_value("--against", Annotated[str, one_of(tuple(IMPLEMENTATIONS))], against)
    if against in check.candidates:
        raise UsageError(
            f"--against {against} is among --implementations {','.join(check.candidates)}; it "
            "would be compared with itself"
        )
    job = check.job(check.sweep(against))

    def sides() -> Sides:
        stored = store.load_sweep(job.folder)
        base, *candidates = (
            Side(
                label=name,
                records=stored.records,
                environments=stored.environments,
                where={"implementation": name},
                source=str(job.folder),
            )
            for name in (against, *check.candidates)
        )
        return [(base, candidate) for candidate in candidates]

    measure(job, check.progress, check.looks(sides))
    check.progress.note(f"records are in {job.folder}")
    return sides()


def exit_status_of(verdict: Verdict, sides: Sides, *, strict: bool) -> int:
    """The exit status: what failed goes before the outcome, and wrong gradients before all else.

    Raises NotComparable if not a single row has a number on both sides, but no candidate failed.
    """
    measured = [record for _, candidate in sides for record in candidate.selected()]
    baseline = sides[0][0].selected()
    status = exit_status(measured)
    if exit_status(baseline) == WRONG_GRADIENTS:  # they void a baseline as well
        status = WRONG_GRADIENTS
    is_idle = all(record.status is Status.SKIPPED for record in measured)
    if (is_idle or not status) and all(row.slowdown is None for row in verdict.rows):
        row = verdict.rows[0]
        others = (one for one in (*measured, *baseline) if one.status is not Status.COMPLETED)
        why = next((f" ({one.status.words}: {one.reason})" for one in others if one.reason), "")
        raise NotComparable(f"nothing could be compared: {row.pair.label}: {row.reason}{why}")
    ends = {"pass": PASS, "regressed": REGRESSED, "inconclusive": INCONCLUSIVE if strict else PASS}
    return status or ends[verdict.outcome]
