"""Measures what `dpbench check` compares, unless it is stored, and judges it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from dpbench import store, units
from dpbench.analysis.comparisons.change import ALPHA
from dpbench.analysis.comparisons.matching import Side
from dpbench.analysis.comparisons.verdict import ALPHA_OF_A_LOOK, Verdict, assess
from dpbench.analysis.metrics import METRICS
from dpbench.analysis.repetitions import load_notes
from dpbench.architecture import make_importable
from dpbench.errors import INCONCLUSIVE, NotComparable, StoreError, UsageError
from dpbench.launch.nodes import Node
from dpbench.messages import say, warn
from dpbench.options.bridge import read_options, read_value
from dpbench.options.check import CheckOptions, RepeatedOptions
from dpbench.options.sweep import SweepOptions
from dpbench.options.types import Percent, one_of
from dpbench.records.environment import Environment
from dpbench.records.trial import Status, TrialRecord
from dpbench.report.progress.trials import Reporter
from dpbench.run.gate.looks import looks, sizes
from dpbench.run.results import load_sides, results_folder, split_selection
from dpbench.run.sweep.job import Job, host_here
from dpbench.run.sweep.measuring import exit_status, measure
from dpbench.run.sweep.spec import build_sweep_spec
from dpbench.specs import BASELINE, Labels, SweepSpec
from dpbench.specs.traits import IMPLEMENTATIONS, SCRIPT

PASS, REGRESSED, WRONG_GRADIENTS = 0, 3, 6
TWO_SWEEPS = (
    "two sweeps: what changed on the machine between them counts as a change; --against-ref REV "
    "measures both versions of your code in turn"
)
MEASURED = (*(one for one in RepeatedOptions.model_fields if one != "data_dir"), "oversubscribe")
"""Options of a check that say what is measured."""
Sides = list[tuple[Side, Side]]
"""(Baseline, candidate) pairs that are judged together."""
Judged = tuple[Verdict, int]
"""What was found, and the exit status."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """A check that was asked for."""

    options: CheckOptions
    tolerances: Mapping[str, float]
    """The accepted slowdown of each metric: 0.03 for 3 %."""

    def describe(self) -> str:
        """The tolerances, for whoever reads the log of a failed check."""
        shares = self.tolerances.items()
        held = ", ".join(f"{metric} {100 * share:.3g} %" for metric, share in shares)
        return f"tolerance: {held}; {'strict' if self.options.strict else 'not strict'}"

    def describe_plan(self) -> str:
        """How much is measured."""
        first, budget = self.options.repetitions, units.seconds(self.options.budget)
        return (
            f"at least {first} repetitions; while inconclusive, up to {sizes(first)[-1]} as long "
            f"as --budget {budget} lasts"
        )

    def folder(self) -> Path:
        """A folder that does not exist yet; raises StoreError if one of that --name does."""
        folder = results_folder(self.options.results_dir, self.options.name, otherwise="check")
        if folder.exists():
            raise StoreError(f"{folder} already exists; choose another --name")
        return folder

    def sweep(self, *against: str) -> tuple[SweepOptions, SweepSpec, Node]:
        """The sweep for this machine that measures a candidate, and implementations that it is
        compared with; and the options that measure it anywhere.

        Says the notes that the user must see. Group sizes that were not asked for are the largest
        one, unless `single` is asked for; it is measured only then. Raises UsageError.
        """
        options = read_options(SweepOptions, self._measured(against))
        asks_single = BASELINE in options.measured_implementations
        if not asks_single:
            options = options.model_copy(update={"single": False})
        placed = options.model_copy(update={"data_dir": self.options.data_dir})
        notes: list[str] = []
        here = host_here(placed, notes)
        spec = build_sweep_spec(placed, [here], notes)
        say(*notes)
        if options.group_sizes is None and not asks_single:
            largest = (max(spec.group_sizes),)
            options = options.model_copy(update={"group_sizes": largest})
            spec = replace(spec, group_sizes=largest)
        return options, spec, here

    def _measured(self, against: Sequence[str]) -> dict[str, Any]:
        """The options that are measured, under the names that `dpbench sweep` has for them."""
        given = {name: getattr(self.options, name) for name in MEASURED}
        if self.options.script_words:
            kept = {*self.options.model_fields_set, "warmup", "steps"}
            given = {name: value for name, value in given.items() if name in kept}
            given |= {
                "script": self.options.candidate,
                "arguments": self.options.arguments,
                "module": self.options.module,
            }
        else:
            make_importable(*given["arch"], given["data"])
            if len(given["arch"]) > 1:
                raise UsageError(
                    f"--arch {','.join(given['arch'])}: this command measures one architecture; "
                    "expected one name, or a run for each"
                )
        given["implementations"] = (*self.candidates, *against)
        return {name: value for name, value in given.items() if value is not None}

    @property
    def candidates(self) -> tuple[str, ...]:
        """The implementations that are checked: those given, a script as it is, or the default."""
        is_given = "implementations" in self.options.model_fields_set
        by_script = self.options.script_words and not is_given
        return (SCRIPT,) if by_script else self.options.implementations

    def assess(self, sides: Sides, *, alpha: float = ALPHA_OF_A_LOOK) -> Verdict:
        """The sides, judged by the tolerances. Other environments are what --against-python is
        about."""
        return assess(
            sides,
            self.tolerances,
            force=self.options.force or self.options.against_python is not None,
            alpha=alpha,
            strict=self.options.strict,
        )

    def is_settled(self, sides: Sides) -> bool:
        """Whether more repetitions would not change the verdict."""
        return not self.assess(sides).needs_repetitions


def tolerances_of(options: CheckOptions) -> dict[str, float]:
    """The tolerance of each metric; raises UsageError for a metric that cannot be used."""
    tolerances: dict[str, float] = {}
    for entry in (part for text in options.metric for part in text.split(",")):
        name, has_own, own = entry.partition("=")
        metric = read_value("--metric", Annotated[str, one_of(tuple(METRICS))], name.strip())
        if metric in tolerances:
            raise UsageError(f"--metric: {metric} is listed twice; give it one tolerance")
        tolerances[metric] = (
            read_value(f"--metric {metric}", Percent, own) if has_own else options.tolerance
        )
    return tolerances


def check_stored(wanted: Check, candidate: str, baseline: str) -> Judged:
    """Judge results that are stored; both are folders or parts of them, as in compare.

    Raises NotComparable if there is no baseline, as before the first run of a CI job.
    """
    folder = split_selection(baseline)[0]
    if not (store.holds_sweep(folder) or folder.is_file()):
        raise NotComparable(f"--baseline {baseline}: {folder} has no sweep to compare with")
    (before, now), warnings = load_sides(baseline, candidate)
    warn(*warnings)
    sides = [(before, now)]
    verdict = wanted.assess(sides, alpha=ALPHA)
    if before.source != now.source:
        verdict = replace(verdict, notes=(TWO_SWEEPS, *verdict.notes))
    return conclude(verdict, wanted, sides, now.selected())


def check_against(wanted: Check, against: str) -> Judged:
    """Measure candidates and another implementation in turn, and judge them by repetition.

    Repetitions are added while the verdict is inconclusive and the budget lasts.
    """
    options, names = wanted.options, wanted.candidates
    read_value("--against", Annotated[str, one_of(tuple(IMPLEMENTATIONS))], against)
    if against in names:
        raise UsageError(
            f"--against {against} is among --implementations {','.join(names)}; it would be "
            "compared with itself"
        )
    _, spec, here = wanted.sweep(against)
    spec = replace(spec, repetitions=options.repetitions)
    folder = wanted.folder()

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

    def is_settled() -> bool:
        return wanted.is_settled(sides(store.load(folder).records, {}))

    job = Job(
        spec=spec,
        hosts=[here],
        folder=folder,
        command=["check", *options.words()],
        data_dir=options.data_dir,
    )
    say(wanted.describe_plan())
    goals = looks(options.repetitions, options.budget, is_settled)
    stored = measure(job, Reporter(quiet=options.quiet), goals)
    say(f"records are in {folder}")
    judged = sides(stored.records, stored.environments)
    return conclude(wanted.assess(judged), wanted, judged, stored.records)


def conclude(
    verdict: Verdict, wanted: Check, sides: Sides, measured: Sequence[TrialRecord]
) -> Judged:
    """Give the exit status, after warnings about what was measured.

    Raises NotComparable if not a single row has a number on both sides, but nothing failed."""
    warn(*load_notes(measured))
    rows = verdict.rows
    status = _status_of_trials(
        [record for side, _ in sides for record in side.selected()], measured
    )
    idle = all(record.status is Status.SKIPPED for record in measured)
    if (idle or not status) and all(row.slowdown is None for row in rows):
        first = rows[0]
        skipped = next((r.reason for r in measured if r.status is Status.SKIPPED and r.reason), "")
        raise NotComparable(
            f"nothing could be compared: {first.label}: {first.reason}"
            f"{f' (skipped: {skipped})' if skipped else ''}"
        )
    outcome = verdict.outcome
    if not status and outcome == "inconclusive" and not wanted.options.strict:
        warn("inconclusive (an error only with --strict)")
    else:
        ends = {"pass": PASS, "regressed": REGRESSED, "inconclusive": INCONCLUSIVE}
        status = status or ends[outcome]
    return verdict, status


def _status_of_trials(baseline: Sequence[TrialRecord], measured: Sequence[TrialRecord]) -> int:
    """0 if they can be judged; wrong gradients void a baseline as well."""
    if exit_status(baseline) != WRONG_GRADIENTS:
        return exit_status(measured)
    names = Labels.among(record.trial for record in baseline)
    wrong = (record.trial for record in baseline if record.status is Status.WRONG_GRADIENTS)
    listed = "; ".join(dict.fromkeys(map(names.configuration, wrong)))
    say(f"wrong gradients in the baseline: {listed}")
    return WRONG_GRADIENTS
