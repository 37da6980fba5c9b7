"""Candidate against baseline, configuration by configuration: the change of the cost, its
uncertainty, and what it means.

The values are those of whole runs, never of steps. Runs of two sweeps are compared by Welch's t
on logarithms; runs of one sweep by their differences within a repetition, because a repetition is
one pass of the palindrome, and what disturbed the machine then disturbed both (from `MIN_PAIRS`
repetitions on: fewer lose more degrees of freedom than that gives back).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import product
from operator import attrgetter
from typing import Any, Literal, Self

from dpbench.analysis.change import ALPHA, Change, change_between, holm
from dpbench.analysis.comparisons.matching import Identity, Records, Side, settings_to_match
from dpbench.analysis.estimate import MIN_PAIRS, Estimate, geometric_mean
from dpbench.analysis.metric import Metric
from dpbench.analysis.metrics import COMPARED_METRICS
from dpbench.analysis.repetitions import usable_repetitions
from dpbench.analysis.rows import order_of
from dpbench.architecture.naming import named_files
from dpbench.errors import NotComparable, UsageError
from dpbench.specs import AXES, Configuration, Labels, series_name
from dpbench.specs.labels import row_name
from dpbench.specs.trial import DEFAULTS

ComparisonOutcome = Literal["faster", "slower", "better", "worse", "same", "inconclusive"]
"""Outcomes of a row in `compare`."""
VerdictOutcome = Literal["regressed", "inconclusive", "pass"]
"""Outcomes in `check`, of a row, of a metric and of the whole; the worst first."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ComparedRow:
    """One metric of one configuration on both sides, and its change."""

    label: str
    """Name on both sides, see `Comparison.pairs`."""
    metric: str
    unit: str
    """Unit of both averages."""
    baseline: Estimate | None
    candidate: Estimate | None
    baseline_records: Records
    """The usable repetitions of the baseline."""
    candidate_records: Records
    change: Change | None
    """The change of the cost: of time or memory; None if a side has no run."""

    @property
    def tested(self) -> Change | None:
        """The change; None if too few runs were measured for an interval and p-values."""
        change = self.change
        return None if change is None or change.error is None else change

    @property
    def repetitions(self) -> tuple[int, int]:
        """Number of compared repetitions of the baseline and of the candidate."""
        if self.change is not None:
            return self.change.repetitions
        first, second = (0 if e is None else e.sample_size for e in (self.baseline, self.candidate))
        return first, second

    @property
    def reason(self) -> str | None:
        """Why it cannot be tested; None if it can."""
        sides = {"baseline": self.baseline_records, "candidate": self.candidate_records}
        counts = dict(zip(sides, self.repetitions, strict=True))
        for side, records in sides.items():
            if not counts[side]:
                missing = "not measured in" if records else "no completed repetition of"
                return f"{missing} the {side}"
        few = [side for side, count in counts.items() if count == 1]
        return f"one repetition of the {' and the '.join(few)}" if few else None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class JudgedRow(ComparedRow):
    """A compared row with its outcome, by the rule of `compare` or of `check`."""

    outcome: ComparisonOutcome | VerdictOutcome
    p_value: float | None
    """p-value of a t test: of a difference (`compare`), or of a change above the tolerance
    (`check`); None if it was not tested."""
    p_value_corrected: float | None
    """The same, corrected for the number of rows (Holm)."""

    @classmethod
    def of(cls, row: ComparedRow, **judgment: Any) -> Self:
        """The compared row with its `judgment`: the fields that it lacks."""
        return cls(**{one.name: getattr(row, one.name) for one in fields(ComparedRow)}, **judgment)

    @property
    def is_open(self) -> bool:
        """Whether it was measured and is inconclusive."""
        return self.outcome == "inconclusive" and any(self.repetitions)


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """The configurations that ran on both sides, and what else differs between the sides."""

    baseline: Side
    candidate: Side
    ran_in_turn: bool
    """Whether both sides were measured in one run, repetition by repetition."""
    pairs: tuple[tuple[str, Records, Records], ...]
    """For each configuration its name, and the usable repetitions of the baseline and of the
    candidate. Names are those on both sides; if they differ, the part in common, or the
    candidate's."""
    differences: tuple[str, ...]
    """Differences between the environments that forbid a comparison unless it is forced."""
    notes: tuple[str, ...]
    """Other differences between the sides, and configurations that are on one side only."""

    def rows(self, name: str) -> tuple[ComparedRow, ...]:
        """The rows of a metric, except those that completed without it on either side.

        Raises NotComparable if it is a speed in other items on one side than on the other.
        """
        metric = COMPARED_METRICS[name]
        rows = []
        for label, *both in self.pairs:
            items = sorted({one.facts.item for records in both for one in records if one.ranks})
            if metric.is_speed and len(items) > 1:
                raise NotComparable(f"{label}: the sides count different items: {', '.join(items)}")
            unit = metric.counting(items or ["samples"]).unit
            before, now = (readings(records, metric) for records in both)
            if before or now or not any(both):
                is_paired = self.ran_in_turn and len(before.keys() & now.keys()) >= MIN_PAIRS
                is_cost = metric.better == "lower"
                costs = (
                    {n: v if is_cost else 1 / v for n, v in side.items()} for side in (before, now)
                )
                row = ComparedRow(
                    label=label,
                    metric=name,
                    unit=unit,
                    baseline=geometric_mean([*before.values()], unit) if before else None,
                    candidate=geometric_mean([*now.values()], unit) if now else None,
                    baseline_records=both[0],
                    candidate_records=both[1],
                    change=change_between(*costs, paired=is_paired),
                )
                rows.append(row)
        return tuple(rows)


def compare_sides(baseline: Side, candidate: Side, *, force: bool = False) -> Comparison:
    """Pair the configurations of two sides that ran the same thing, by the names that they have in
    common.

    Settings that a selection fixes on either side are not compared, nor are repetitions. Raises
    NotComparable if no configuration is on both sides, naming the settings in which they have
    nothing in common, or, unless `force`, if they come from environments that must not be compared;
    UsageError if a side has two configurations that cannot be distinguished so, or if the sides
    share trials.
    """
    ours, theirs = baseline.selected(), candidate.selected()
    ran_in_turn = baseline.run_id is not None and baseline.run_id == candidate.run_id
    measured = {record.trial: record for record in ours}
    if ran_in_turn and any(measured.get(record.trial) == record for record in theirs):
        raise UsageError(
            f"{baseline.label} and {candidate.label} have trials in common; compare two folders, "
            "or two parts of one, e.g. DIR:backend=gloo DIR:backend=shm"
        )
    keys = settings_to_match(baseline, candidate)
    first, second = baseline.configurations(keys), candidate.configurations(keys)
    if not first.keys() & second.keys():
        raise NotComparable(
            f"no configuration is in both {baseline.label} and {candidate.label}; "
            f"{_why_none(keys, first, second)}"
        )
    labels = Labels.among(record.configuration for record in (*ours, *theirs))
    settings = {key: records[0].configuration for key, records in (second | first).items()}
    ordered = sorted(
        settings, key=lambda key: order_of(settings[key], labels.implementation(settings[key]))
    )
    pairs = tuple(
        (
            _common_label(first[key][0].configuration, second[key][0].configuration, labels),
            usable_repetitions(first[key]),
            usable_repetitions(second[key]),
        )
        for key in ordered
        if key in first and key in second
    )
    differences = environment_differences(baseline, candidate)
    if differences and not force:
        raise NotComparable(
            f"{baseline.label} and {candidate.label} come from different environments: "
            f"{'; '.join(differences)}. --force compares them nevertheless"
        )
    notes = origin_notes(baseline, candidate, pairs)
    for side, own, other in ((baseline, first, second), (candidate, second, first)):
        alone = [labels.label(settings[key]) for key in ordered if key in own and key not in other]
        notes += [f"only in {side.label}, not compared: {'; '.join(alone)}"] if alone else []
    return Comparison(
        baseline=baseline,
        candidate=candidate,
        ran_in_turn=ran_in_turn,
        pairs=pairs,
        differences=tuple(differences),
        notes=tuple(notes),
    )


def _why_none(keys: Sequence[str], *sides: Mapping[Identity, object]) -> str:
    """The settings of which the sides have no value in common."""
    columns = (map(dict.fromkeys, zip(*side, strict=True)) for side in sides)
    listed = [
        f"{key}: {', '.join(map(str, before))} -> {', '.join(map(str, now))}"
        for key, before, now in zip(keys, *columns, strict=True)
        if not before.keys() & now.keys()
    ]
    if listed:
        return f"they differ in {'; '.join(listed)}"
    return "each setting occurs on both sides, but never in the same combination"


def environment_differences(baseline: Side, candidate: Side) -> list[str]:
    """Differences that forbid a comparison, such as "cpu: A -> B". Sides that mix the same
    environments do not differ."""
    before, after = baseline.used_environments(), candidate.used_environments()
    if before.keys() == after.keys():
        return []
    found = list[str]()
    for first, second in product(before.values(), after.values()):
        found += second.differences_from(first) if first and second else ["some are not stored"]
    then, now = baseline.group_classes(), candidate.group_classes()
    found += [
        f"process group {then[backend]} -> {now[backend]}"
        for backend in then
        if now.get(backend, then[backend]) != then[backend]
    ]
    return [*dict.fromkeys(found)]


def origin_notes(
    baseline: Side, candidate: Side, pairs: Iterable[tuple[str, Records, Records]]
) -> list[str]:
    """Differences that a comparison may be about: the user's files and the host."""
    notes: dict[str, None] = {}
    for _, then_ran, now_ran in pairs:
        if then_ran and now_ran:
            old, new = then_ran[0].configuration.workload, now_ran[0].configuration.workload
            if old.files_sha256 != new.files_sha256 and named_files(new) == named_files(old):
                notes[f"{named_files(new)} has changed between the two"] = None
    then, now = (
        dict.fromkeys(one.hostname for one in side.used_environments().values() if one)
        for side in (baseline, candidate)
    )
    if then and now and then.keys() != now.keys():
        notes[f"hosts differ: {', '.join(then)} -> {', '.join(now)}"] = None
    return [*notes]


def _common_label(first: Configuration, second: Configuration, labels: Labels) -> str:
    """The parts of a configuration's name in which both agree: the implementation with the settings
    that are told, the backend, the sizes."""
    differing = {name for name in AXES if first.setting(name) != second.setting(name)}
    # Names tell no setting that has its default.
    agreed = first.with_settings({name: DEFAULTS[name] for name in differing & DEFAULTS.keys()})
    read = attrgetter("implementation", "backend", "group_size", "replicas_by_node", "batch_size")
    name, backend, size, nodes, batch = (
        a if a == b else None for a, b in zip(read(first), read(second), strict=True)
    )
    if name:
        told = Labels(tuple(name for name in labels.several if name not in differing))
        name = series_name(told.implementation(agreed), backend)
    both = f"{labels.label(first)} -> {labels.label(second)}"
    return row_name(name or backend or "", size, nodes or (), batch) or both


def readings(records: Records, metric: Metric) -> dict[int, float]:
    """The value of a metric in each repetition that has it."""
    values = ((record.trial.repetition, metric.in_trial(record)) for record in records)
    return {repetition: value for repetition, value in values if isinstance(value, int | float)}


def classify(rows: Sequence[ComparedRow], *, within: float) -> tuple[JudgedRow, ...]:
    """The rows of a metric with their outcomes; a difference of `within` counts as the same: 0.03
    is 3 %.

    The outcome is "same" if the whole interval of the change lies between 1 / (1 + within) and
    1 + within; else faster or slower if the p-value, corrected for all rows, is below 0.05; else
    it is inconclusive.
    """
    p_values = [row.tested.p_value if row.tested else None for row in rows]
    judged = []
    for row, p, corrected in zip(rows, p_values, holm(p_values), strict=True):
        is_speed = COMPARED_METRICS[row.metric].is_speed
        outcome: ComparisonOutcome = "inconclusive"
        if row.tested and corrected is not None:
            low, high = row.tested.estimate.ends
            if 1 / (1 + within) <= low and high <= 1 + within:
                outcome = "same"
            elif corrected < ALPHA and row.tested.log_ratio < 0:
                outcome = "faster" if is_speed else "better"
            elif corrected < ALPHA:
                outcome = "slower" if is_speed else "worse"
        judged.append(JudgedRow.of(row, outcome=outcome, p_value=p, p_value_corrected=corrected))
    return tuple(judged)
