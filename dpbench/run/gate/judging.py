"""Measures what `dpbench check` compares, unless it is stored, and judges it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from dpbench import store
from dpbench.analysis.comparisons.change import ALPHA
from dpbench.analysis.comparisons.matching import NotComparable, Side
from dpbench.analysis.comparisons.verdict import ALPHA_OF_A_LOOK, Assessment, assess
from dpbench.analysis.load import load_notes
from dpbench.analysis.metrics import METRICS
from dpbench.architecture import make_importable, split_names
from dpbench.errors import StoreError, UsageError
from dpbench.launch.machine import Machine
from dpbench.messages import say, warn
from dpbench.options.bridge import Layer, read, read_value
from dpbench.options.sweep import SweepOptions
from dpbench.options.types import Choice
from dpbench.records.environment import Environment
from dpbench.records.trial import Status, TrialRecord
from dpbench.run.gate.looks import looks
from dpbench.run.gate.thresholds import Thresholds
from dpbench.run.results import load_sides, results_folder, split_selection
from dpbench.run.sweep.grid import missing, plan_trials
from dpbench.run.sweep.measuring import Measurement, measure
from dpbench.run.sweep.preparation import exit_status
from dpbench.run.sweep.spec import build_sweep_spec
from dpbench.run.this_machine import machine_here
from dpbench.specs import BASELINE, Labels, SweepSpec, TrialSpec
from dpbench.specs.traits import BUILT_IN

PASS, REGRESSED, INCONCLUSIVE, WRONG_GRADIENTS = 0, 3, 4, 6
TWO_SWEEPS = (
    "two sweeps: what changed on the machine between them counts as a change; --against-ref REV "
    "measures both versions of your code in turn"
)
Sides = list[tuple[Side, Side]]
"""(Baseline, candidate) pairs that are judged together."""
Judged = tuple[Assessment, int]
"""What was found, and the exit status."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredFolder:
    """The folder of the measurements and their data, and how much is printed meanwhile."""

    results_dir: Path
    quiet: bool
    data_dir: Path | None
    name: str | None
    command: Sequence[str]
    """The command that measures, as the folder keeps it."""
    embedded: bool = False
    """Whether another program measures, whose signal handlers stay."""

    def folder(self) -> Path:
        """A folder that does not exist yet; raises StoreError if one of that --name does."""
        folder = results_folder(self.results_dir, self.name, otherwise="check")
        if folder.exists():
            raise StoreError(f"{folder} already exists; choose another --name")
        return folder


def parse_sweep(axes: Mapping[str, Any]) -> SweepOptions:
    """The options under the names that `dpbench sweep` has for them; raises UsageError."""
    make_importable(axes["arch"], axes["step"], axes["data"])
    if len(split_names(axes["arch"])) > 1:
        raise UsageError(
            f"--arch {axes['arch']}: this command measures one architecture; expected one name, "
            "or a run for each"
        )
    return read(SweepOptions, Layer("", {n: v for n, v in axes.items() if v is not None}))


def plan_sweep(
    options: SweepOptions, target: MeasuredFolder, metrics: Collection[str]
) -> tuple[SweepOptions, SweepSpec, Machine]:
    """The sweep for this machine, and the options that measure it anywhere.

    Says the notes that the user must see. Group sizes that were not asked for are the largest one,
    unless `single` is asked for. `single` is measured only then, or for a metric that is relative
    to it. Raises UsageError.
    """
    machine = machine_here()
    asks_single = BASELINE in options.measured_implementations
    if not asks_single and not any(METRICS[name].is_relative for name in metrics):
        options = options.model_copy(update={"single": False})
    placed = options.model_copy(update={"data_dir": target.data_dir})
    spec, notes = build_sweep_spec(placed, machine)
    say(*notes)
    if options.group_sizes is None and not asks_single:
        largest = (max(spec.group_sizes),)
        options = options.model_copy(update={"group_sizes": largest})
        spec = replace(spec, group_sizes=largest)
    return options, spec, machine


def assessed(wanted: Thresholds, sides: Sides, *, alpha: float) -> Assessment:
    """The sides, judged by these thresholds."""
    return assess(sides, wanted.tolerances, force=wanted.force, alpha=alpha, strict=wanted.strict)


def check_stored(wanted: Thresholds, candidate: str, baseline: str) -> Judged:
    """Judge results that are stored; both are folders or parts of them, as in compare.

    Raises NotComparable if there is no baseline, as before the first run of a CI job.
    """
    folder = split_selection(baseline)[0]
    if not (store.holds_sweep(folder) or folder.is_file()):
        raise NotComparable(f"--baseline {baseline}: {folder} has no sweep to compare with")
    before, now = load_sides(baseline, candidate)
    sides = [(before, now)]
    assessment = assessed(wanted, sides, alpha=ALPHA)
    if before.source != now.source:
        assessment = replace(assessment, notes=(TWO_SWEEPS, *assessment.notes))
    return conclude(assessment, wanted, sides, now.selected())


def check_against(
    wanted: Thresholds, against: str, axes: Mapping[str, Any], target: MeasuredFolder
) -> Judged:
    """Measure candidates and baseline in turn, and judge them by repetition.

    Repetitions are added while the verdict is inconclusive and the budget lasts.
    """
    names = axes["implementations"]
    read_value("--against", Annotated[str, Choice(tuple(BUILT_IN))], against)
    if against in names:
        raise UsageError(
            f"--against {against} is among --implementations {','.join(names)}; it would be "
            "compared with itself"
        )
    options = parse_sweep({**axes, "implementations": (*names, against)})
    _, spec, machine = plan_sweep(options, target, wanted.tolerances)
    spec = replace(spec, repetitions=wanted.repetitions)
    folder = target.folder()

    def sides(records: Sequence[TrialRecord], environments: Mapping[str, Environment]) -> Sides:
        """Every candidate implementation with the baseline of the same sweep."""
        base, *candidates = (
            Side(
                label=name,
                records=tuple(records),
                environments=environments,
                where={"implementation": name},
                source=str(folder),
            )
            for name in (against, *names)
        )
        return [(base, candidate) for candidate in candidates]

    measured: Sequence[TrialRecord] = ()

    def is_settled() -> bool:
        found = assessed(wanted, sides(measured, {}), alpha=ALPHA_OF_A_LOOK)
        return not found.verdict.needs_repetitions

    goals = looks(wanted.repetitions, wanted.budget_seconds, is_settled)

    def rounds(records: Sequence[TrialRecord]) -> Sequence[TrialSpec]:
        """The trials up to the next look."""
        nonlocal measured
        measured = records
        goal = next(goals, None)
        return () if goal is None else missing(plan_trials(spec, goal), records)

    measurement = Measurement(
        spec=spec,
        folder=folder,
        command=target.command,
        data_dir=target.data_dir,
        quiet=target.quiet,
        embedded=target.embedded,
    )
    say(wanted.describe_plan())
    stored = measure(measurement, machine, rounds)
    say(f"records are in {folder}")
    judged = sides(stored.records, stored.environments)
    assessment = assessed(wanted, judged, alpha=ALPHA_OF_A_LOOK)
    return conclude(assessment, wanted, judged, stored.records)


def conclude(
    assessment: Assessment, wanted: Thresholds, sides: Sides, measured: Sequence[TrialRecord]
) -> Judged:
    """Give the exit status, after warnings about what was measured.

    Raises NotComparable if not a single row has a number on both sides, but nothing failed."""
    warn(*load_notes(measured))
    rows = assessment.verdict.rows
    status = _status_of_trials(
        [record for side, _ in sides for record in side.selected()], measured
    )
    idle = all(record.status is Status.SKIPPED for record in measured)
    if (idle or not status) and all(row.comparison.slowdown is None for row in rows):
        first = rows[0].comparison
        skipped = next((r.reason for r in measured if r.status is Status.SKIPPED and r.reason), "")
        raise NotComparable(
            f"nothing could be compared: {first.label}: {first.reason}"
            f"{f' (skipped: {skipped})' if skipped else ''}"
        )
    outcome = assessment.verdict.outcome
    if not status and outcome == "inconclusive" and not wanted.strict:
        warn("inconclusive (an error only with --strict)")
    else:
        ends = {"pass": PASS, "regressed": REGRESSED, "inconclusive": INCONCLUSIVE}
        status = status or ends[outcome]
    return assessment, status


def _status_of_trials(baseline: Sequence[TrialRecord], measured: Sequence[TrialRecord]) -> int:
    """0 if they can be judged; wrong gradients void a baseline as well."""
    if exit_status(baseline) != WRONG_GRADIENTS:
        return exit_status(measured)
    names = Labels.among(record.trial for record in baseline)
    wrong = (record.trial for record in baseline if record.status is Status.WRONG_GRADIENTS)
    listed = "; ".join(dict.fromkeys(map(names.configuration, wrong)))
    say(f"wrong gradients in the baseline: {listed}")
    return WRONG_GRADIENTS
