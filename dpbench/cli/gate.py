"""What `dpbench check` does once its options are right: measure what is not stored, and judge."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpbench import store
from dpbench.analysis.assessment import Assessment, assess
from dpbench.analysis.matching import NotComparable, Side
from dpbench.analysis.metrics import METRICS
from dpbench.analysis.verdict import ALPHA, ALPHA_OF_A_LOOK
from dpbench.cli.compare import load_sides
from dpbench.cli.gate_sweep import Target, parse_sweep
from dpbench.cli.measuring import here, machine_for, measure, say
from dpbench.cli.rounds import UntilSettled
from dpbench.cli.sweep_options import build
from dpbench.cli.sweep_run import exit_status
from dpbench.cli.thresholds import Thresholds
from dpbench.cli.values import comma_list, known_name
from dpbench.cli.verdict_outputs import Outputs
from dpbench.environment import Environment
from dpbench.errors import UsageError
from dpbench.launch.machine import Machine
from dpbench.records import TrialRecord
from dpbench.specs import IMPLEMENTATIONS, SweepSpec

PASS, REGRESSED, INCONCLUSIVE = 0, 3, 4

Sides = list[tuple[Side, Side]]
"""(Baseline, candidate) pairs that are judged together."""
MakeSides = Callable[[Sequence[TrialRecord], Mapping[str, Environment]], Sides]
"""From what was measured to what is compared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """What is tolerated, and who is told."""

    thresholds: Thresholds
    force: bool
    outputs: Outputs

    def assess(self, sides: Sides, *, alpha: float = ALPHA) -> Assessment:
        return assess(sides, self.thresholds.tolerances, force=self.force, alpha=alpha)


def check_stored(gate: Gate, candidate: str, baseline: str) -> int:
    """Judges results that are stored; both are folders or parts of them, as in compare."""
    gate.outputs.check(gate.thresholds.tolerances)
    before, now = load_sides(baseline, candidate)
    return _conclude(gate, [(before, now)], now.selected())


def check_again(gate: Gate, baseline: Path, target: Target) -> int:
    """Runs the sweep of the baseline again, here and now, and judges what comes of it."""
    spec = store.load(baseline).spec
    (before,) = load_sides(str(baseline))
    machine = machine_for(synthetic=target.synthetic)
    _check_environment(before, machine, gate, target)
    folder = target.folder("check")

    def sides(records: Sequence[TrialRecord], environments: Mapping[str, Environment]) -> Sides:
        return [
            (before, Side(label=str(folder), records=tuple(records), environments=environments))
        ]

    return _measure_and_judge(gate, spec, machine, target, folder, sides)


def check_against(gate: Gate, against: str, axes: Mapping[str, Any], target: Target) -> int:
    """Measures candidates and baseline in turn, and judges them pass by pass."""
    names = _candidates(axes["implementations"], against)
    parsed = parse_sweep({**axes, "implementations": ",".join((*names, against))})
    machine = machine_for(synthetic=target.synthetic)
    spec, notes = build(parsed, machine)
    for note in notes:
        say(note)
    folder = target.folder("check")
    sides = _side_by_side(folder, names, against)
    return _measure_and_judge(gate, spec, machine, target, folder, sides)


def _measure_and_judge(
    gate: Gate,
    planned: SweepSpec,
    machine: Machine,
    target: Target,
    folder: Path,
    sides: MakeSides,
) -> int:
    """Adds repetitions to inconclusive rows while the budget lasts."""
    _check_baselines_of_efficiency(gate, planned)
    gate.outputs.check(gate.thresholds.tolerances)
    spec = replace(planned, repetitions=gate.thresholds.repetitions)
    measurement = target.measurement(spec, folder)
    rounds = UntilSettled(
        spec,
        lambda records: gate.assess(sides(records, {}), alpha=ALPHA_OF_A_LOOK).unsettled(),
        budget_seconds=gate.thresholds.budget_seconds,
        say=say,
    )
    say(gate.thresholds.describe_effort())
    stored = measure(measurement, machine, rounds)
    say(f"records are in {folder}")
    judged = sides(stored.records, stored.environments)
    return _conclude(gate, judged, stored.records, alpha=ALPHA_OF_A_LOOK)


def _conclude(
    gate: Gate, sides: Sides, measured: Sequence[TrialRecord], *, alpha: float = ALPHA
) -> int:
    assessment = gate.assess(sides, alpha=alpha)
    status = _exit_status(gate, assessment, measured)
    gate.outputs.write(assessment, gate.thresholds, status)
    return status


def _exit_status(gate: Gate, assessment: Assessment, records: Sequence[TrialRecord]) -> int:
    if status := exit_status(records):
        return status
    outcome = assessment.verdict.outcome
    if outcome == "inconclusive" and not gate.thresholds.strict:
        say("warning: inconclusive, which is no failure without --strict")
        return PASS
    return {"pass": PASS, "regressed": REGRESSED, "inconclusive": INCONCLUSIVE}[outcome]


def _side_by_side(folder: Path, names: Sequence[str], against: str) -> MakeSides:
    """Every candidate implementation of a sweep with the baseline of the same sweep."""

    def sides(records: Sequence[TrialRecord], environments: Mapping[str, Environment]) -> Sides:
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

    return sides


def _check_environment(before: Side, machine: Machine, gate: Gate, target: Target) -> None:
    """Raises NotComparable for results of another environment, before anything is measured."""
    now = here(machine, synthetic=target.synthetic)
    different = [d for there in before.environments.values() for d in now.differences_from(there)]
    if different and not gate.force:
        raise NotComparable(
            f"{before.label} comes from another environment than this one: "
            f"{'; '.join(dict.fromkeys(different))}. --force compares nevertheless, --against "
            "measures a baseline here"
        )


def _candidates(implementations: str, against: str) -> tuple[str, ...]:
    known_name("--against", against, IMPLEMENTATIONS)
    names = comma_list(
        "--implementations",
        implementations,
        lambda option, token: known_name(option, token, IMPLEMENTATIONS),
        [],
    )
    if against in names:
        raise UsageError(
            f"--against {against} is among --implementations {implementations}; it would be "
            "compared with itself"
        )
    return names


def _check_baselines_of_efficiency(gate: Gate, spec: SweepSpec) -> None:
    relative = [metric for metric in gate.thresholds.tolerances if METRICS[metric].relative]
    if relative and (1 not in spec.group_sizes or max(spec.group_sizes) == 1):
        sizes = ",".join(map(str, spec.group_sizes))
        raise UsageError(
            f"--metric {relative[0]} needs group size 1 and a larger one, but --group-sizes are "
            f"{sizes}; measure both"
        )
