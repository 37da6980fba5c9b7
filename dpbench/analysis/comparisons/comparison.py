"""Candidate against baseline: the change of each metric in the configurations that ran on both
sides, and what else differs between the sides."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from operator import attrgetter
from typing import Literal

from dpbench.analysis.change import Change, change_between
from dpbench.analysis.comparisons.matching import Identity, Records, Side, matched_configurations
from dpbench.analysis.estimate import Estimate, geometric_mean
from dpbench.analysis.metrics import COMPARED_METRICS, Metric
from dpbench.analysis.noise import MachineLoad, machine_load
from dpbench.analysis.rows import Row, by_configuration, order_of, usable_records, worst_status
from dpbench.architecture.naming import named_files
from dpbench.errors import NotComparable, UsageError
from dpbench.specs import AXES, IDENTITY, Configuration, Labels, row_name, series_name

Outcome = Literal[
    "faster", "slower", "better", "worse", "same", "pass", "regressed", "inconclusive"
]
"""What a change means: one of the first five to `compare`, "pass" or "regressed" to `check`."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ComparedRow:
    """A configuration that ran on both sides, compared by one metric."""

    label: str
    """The name that both sides give it, or what their names have in common, or both names."""
    metric: Metric[Row]
    """The metric where the items of both sides are counted, as "images/s"."""
    baseline: Estimate | None
    """The mean over usable repetitions of the baseline; None if none has the metric."""
    candidate: Estimate | None
    """The mean of the candidate."""
    change: Change | None
    """The change of the cost, which is time or memory; None if a side lacks the metric."""
    repetitions: tuple[int, int]
    """Number of compared repetitions of the baseline and of the candidate."""
    reason: str | None
    """Why it cannot be tested; None if it can."""
    outcome: Outcome = "inconclusive"
    p_value: float | None = None
    """p-value of a t test: of a difference (`compare`), or of a change above the tolerance
    (`check`); None if it was not tested."""
    p_value_corrected: float | None = None
    """The same, corrected for the number of rows (Holm)."""

    @property
    def is_open(self) -> bool:
        """Whether it was measured and is inconclusive."""
        return self.outcome == "inconclusive" and any(self.repetitions)


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The verdict of `check` on a metric, over all rows."""

    metric: str
    tolerance: float
    regress_level: float
    """Level of the tests for a regression, which all metrics of the check share."""
    change: Change | None
    """The mean change of the cost over all rows; None if no runs can be compared."""
    outcome: Outcome
    """Regressed if a single row is; else that of the mean change."""

    @property
    def repetitions_needed(self) -> int | None:
        """Repetitions that would settle it in 4 of 5 cases, if the change is not close to the
        tolerance; None if out of reach."""
        if self.change is None:
            return None
        return self.change.repetitions_to_settle(1 + self.tolerance, self.regress_level / 2)


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """The rows that two sides have in common, and what else differs between the sides."""

    baseline: Side
    candidate: Side
    rows: Mapping[str, Sequence[ComparedRow]]
    """By metric, a row for each configuration that ran on both sides, at least one."""
    verdicts: tuple[Verdict, ...] = ()
    """The verdict of `check` on each metric."""
    differences: tuple[str, ...]
    """Differences between the environments, such as "versions: torch 2.13.0 -> 2.14.0", that forbid
    a comparison unless it is forced."""
    notes: tuple[str, ...]
    """Other differences between the sides, and configurations that are on one side only."""
    failures: Mapping[str, str]
    """Status and reason of each configuration that could not be measured, by its name."""
    repetition_seconds: tuple[float, ...]
    """Time of each repetition of all compared configurations on both sides, in order."""
    machine_load: MachineLoad
    """Other load on the machine."""
    had_load_together: bool
    """Whether the sides ran in turn, both under heavy load or neither of them."""

    def load_may_explain(self, outcome: Outcome) -> bool:
        """Whether load on the machine could be the reason of an outcome of `check`: of all but a
        regression between sides that had it together."""
        return outcome != "regressed" or not self.had_load_together


def compare_sides(
    baseline: Side,
    candidate: Side,
    metrics: Iterable[str],
    *,
    ran_in_turn: bool = False,
    force: bool = False,
) -> Comparison:
    """Compare the configurations of two sides that ran the same thing, by these metrics, and within
    each repetition if they are parts of one sweep or two sweeps that `ran_in_turn`.

    Settings that a selection fixes on either side are not compared, nor are repetitions. Raises
    NotComparable if no configuration is on both sides, naming the settings in which they have
    nothing in common, or, unless `force`, if they come from environments that must not be compared,
    or if a speed counts different items; UsageError if a side has two configurations that cannot be
    distinguished so, or if the sides share trials.
    """
    labels = Labels.among(r.configuration for r in (*baseline.records, *candidate.records))
    is_one_sweep = baseline.sweep is candidate.sweep
    if is_one_sweep and {*map(id, baseline.records)} & {*map(id, candidate.records)}:
        raise UsageError(
            f"{baseline.label} and {candidate.label} have trials in common; compare two folders, "
            "or two parts of one, e.g. DIR:backend=gloo DIR:backend=shm"
        )
    in_baseline, in_candidate = matched_configurations(baseline, candidate)
    differences = _environment_differences(baseline, candidate)
    if differences and not force:
        raise NotComparable(
            f"{baseline.label} and {candidate.label} come from different environments: "
            f"{'; '.join(differences)}. --force compares them nevertheless"
        )
    found = {key: records[0].configuration for key, records in (in_candidate | in_baseline).items()}
    in_order = sorted(
        found, key=lambda key: order_of(found[key], labels.implementation(found[key]))
    )
    shared = {
        key: _common_label(found[key], in_candidate[key][0].configuration, labels)
        for key in in_order
        if key in in_baseline and key in in_candidate
    }
    of_baseline = {key: usable_records(in_baseline[key]) for key in shared}
    of_candidate = {key: usable_records(in_candidate[key]) for key in shared}
    notes = [*_edited_files(of_baseline, of_candidate), *_other_hosts(baseline, candidate)]
    for side, other in ((baseline, in_candidate), (candidate, in_baseline)):
        alone = [labels.label(found[key]) for key in in_order if key not in other]
        notes += [f"only in {side.label}, not compared: {'; '.join(alone)}"] if alone else []
    seconds = defaultdict[int, float](float)
    for record in chain(*of_baseline.values(), *of_candidate.values()):
        seconds[record.repetition] += record.duration_seconds
    ran_in_turn = ran_in_turn or is_one_sweep
    loads = {machine_load(side.records).spoils_differences for side in (baseline, candidate)}
    return Comparison(
        baseline=baseline,
        candidate=candidate,
        rows={
            name: [
                compared_row(
                    COMPARED_METRICS[name], label, of_baseline[key], of_candidate[key], ran_in_turn
                )
                for key, label in shared.items()
            ]
            for name in metrics
        },
        differences=differences,
        notes=tuple(notes),
        failures=_failures(candidate, labels, "") | _failures(baseline, labels, " (baseline)"),
        repetition_seconds=tuple(seconds[repetition] for repetition in sorted(seconds)),
        machine_load=machine_load(candidate.records, baseline.records),
        had_load_together=ran_in_turn and len(loads) == 1,
    )


def compared_row(
    metric: Metric[Row], label: str, baseline: Records, candidate: Records, ran_in_turn: bool
) -> ComparedRow:
    """Compare the repetitions of a configuration on both sides by a metric.

    Raises NotComparable for a speed if the sides count different items.
    """
    items = sorted({record.facts.item for record in (*baseline, *candidate) if record.ranks})
    if metric.is_speed and len(items) > 1:
        counted = ", ".join(items)
        raise NotComparable(f"{label}: the sides count different items: {counted}")
    metric = metric.counting(items or ["samples"])
    sides = {"baseline": baseline, "candidate": candidate}
    values = {side: _readings(metric, records) for side, records in sides.items()}
    means = {
        side: geometric_mean([*v.values()], metric.unit) if v else None
        for side, v in values.items()
    }
    costs = values
    if metric.better == "higher":
        costs = {side: {n: 1 / value for n, value in v.items()} for side, v in values.items()}
    change = change_between(**costs, ran_in_turn=ran_in_turn)
    counts = len(values["baseline"]), len(values["candidate"])
    reasons = [
        f"{'not measured in' if sides[side] else 'no completed repetition of'} the {side}"
        for side in sides
        if not values[side]
    ]
    single = [side for side in sides if len(values[side]) == 1]
    if single:
        reasons.append(f"one repetition of the {' and the '.join(single)}")
    return ComparedRow(
        label=label,
        metric=metric,
        baseline=means["baseline"],
        candidate=means["candidate"],
        change=change,
        repetitions=change.repetitions if change else counts,
        reason=reasons[0] if reasons else None,
    )


def _readings(metric: Metric[Row], records: Records) -> dict[int, float]:
    """The value of a metric in each repetition that has it."""
    read = metric.of_trial
    values = ((record.repetition, read(record)) for record in records if read)
    return {repetition: value for repetition, value in values if isinstance(value, int | float)}


def _failures(side: Side, labels: Labels, role: str) -> dict[str, str]:
    """The configurations that could not be measured, see `Comparison.failures`."""
    failures = {}
    for configuration, repetitions in by_configuration(side.records).items():
        status, reason = worst_status(repetitions)
        if status.is_failure:
            failures[f"{labels.label(configuration)}{role}"] = f"{status.words}: {reason}"
    return failures


def _environment_differences(baseline: Side, candidate: Side) -> tuple[str, ...]:
    """Differences that forbid a comparison, such as "cpu: A -> B". Sides that mix the same
    environments do not differ."""
    if baseline.environments.keys() == candidate.environments.keys():
        return ()
    differences = list[str]()
    environments = product(baseline.environments.values(), candidate.environments.values())
    for of_baseline, of_candidate in environments:
        if of_baseline and of_candidate:
            differences += of_candidate.differences_from(of_baseline)
        else:
            differences.append("some are not stored")
    candidate_classes = candidate.group_classes()
    for backend, name in baseline.group_classes().items():
        if candidate_classes.get(backend, name) != name:
            differences.append(f"process group {name} -> {candidate_classes[backend]}")
    return tuple(dict.fromkeys(differences))


def _edited_files(
    baseline: Mapping[Identity, Records], candidate: Mapping[Identity, Records]
) -> Iterable[str]:
    """The user's files that have changed, which a comparison may be about."""
    edited = dict[str, None]()
    for key in baseline:
        if baseline[key] and candidate[key]:
            of_baseline = baseline[key][0].configuration.workload
            of_candidate = candidate[key][0].configuration.workload
            is_edited = of_baseline.files_sha256 != of_candidate.files_sha256
            if is_edited and named_files(of_baseline) == named_files(of_candidate):
                edited[f"{named_files(of_candidate)} has changed between the two"] = None
    return edited


def _other_hosts(baseline: Side, candidate: Side) -> list[str]:
    """Names of the hosts, if these are not the same."""
    of_baseline, of_candidate = (
        dict.fromkeys(
            side.sweep.environments[name].hostname
            for record in side.records
            for name in record.environment_ids
            if name in side.sweep.environments
        )
        for side in (baseline, candidate)
    )
    if not of_baseline or not of_candidate or of_baseline.keys() == of_candidate.keys():
        return []
    return [f"hosts differ: {', '.join(of_baseline)} -> {', '.join(of_candidate)}"]


def _common_label(baseline: Configuration, candidate: Configuration, labels: Labels) -> str:
    """The parts of a configuration's name in which both agree: the implementation with its
    settings, the backend, the sizes."""
    differing = {name for name in AXES if baseline.setting(name) != candidate.setting(name)}
    read = attrgetter(*IDENTITY, "replicas_by_node")
    name, backend, size, batch, nodes = (
        a if a == b else None for a, b in zip(read(baseline), read(candidate), strict=True)
    )
    if name:
        name = series_name(labels.implementation(baseline, without=differing), backend)
    both = f"{labels.label(baseline)} -> {labels.label(candidate)}"
    return row_name(name or backend or "", size, nodes or (), batch) or both
