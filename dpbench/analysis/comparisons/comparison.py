"""Candidate against baseline, configuration by configuration: the change of the cost, its
uncertainty, and what it means."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from operator import attrgetter
from typing import Literal

from dpbench.analysis.change import ALPHA, Change, change_between, holm
from dpbench.analysis.comparisons.matching import Identity, Records, Side, settings_to_match
from dpbench.analysis.estimate import Estimate, geometric_mean
from dpbench.analysis.metrics import COMPARED_METRICS, Metric
from dpbench.analysis.noise import MachineLoad, machine_load
from dpbench.analysis.rows import Row, by_configuration, order_of, usable_repetitions, worst_status
from dpbench.architecture.naming import named_files
from dpbench.errors import NotComparable, UsageError
from dpbench.specs import AXES, Configuration, Labels, series_name
from dpbench.specs.labels import IDENTITY, row_name

Outcome = Literal[
    "faster", "slower", "better", "worse", "same", "pass", "regressed", "inconclusive"
]
"""What a change means: one of the first five to `compare`, "pass" or "regressed" to `check`."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Pair:
    """A configuration that ran on both sides."""

    label: str
    """The name that both sides give it, or what their names have in common, or both names."""
    baseline: Records
    """The usable repetitions of the baseline."""
    candidate: Records
    """The usable repetitions of the candidate."""
    ran_in_turn: bool
    """Whether both sides were measured in one run, repetition by repetition."""

    def unit(self, metric: Metric[Row]) -> str:
        """The unit of a metric, such as "images/s"; raises NotComparable for a speed if the sides
        count different items."""
        both = (*self.baseline, *self.candidate)
        items = sorted({record.facts.item for record in both if record.ranks})
        if metric.is_speed and len(items) > 1:
            counted = ", ".join(items)
            raise NotComparable(f"{self.label}: the sides count different items: {counted}")
        return metric.counting(items or ["samples"]).unit

    def change(self, metric: Metric[Row]) -> Change | None:
        """The change of the cost, which is time or memory; None if a side has no run with the
        metric."""
        before, now = readings(self.baseline, metric), readings(self.candidate, metric)
        if metric.better == "higher":
            before, now = ({n: 1 / value for n, value in side.items()} for side in (before, now))
        return change_between(before, now, ran_in_turn=self.ran_in_turn)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ComparedRow:
    """A metric of a pair: its change, and what that means to `compare` or to `check`."""

    pair: Pair
    metric: str
    unit: str
    """Unit of both averages."""
    change: Change | None
    """See `Pair.change`."""
    outcome: Outcome = "inconclusive"
    p_value: float | None
    """p-value of a t test: of a difference (`compare`), or of a change above the tolerance
    (`check`); None if it was not tested."""
    p_value_corrected: float | None
    """The same, corrected for the number of rows (Holm)."""

    @property
    def baseline(self) -> Estimate | None:
        """The mean of the metric over repetitions of the baseline; None if none has it."""
        return self._mean(self.pair.baseline)

    @property
    def candidate(self) -> Estimate | None:
        """The mean of the candidate."""
        return self._mean(self.pair.candidate)

    def _mean(self, records: Records) -> Estimate | None:
        values = readings(records, COMPARED_METRICS[self.metric]).values()
        return geometric_mean([*values], self.unit) if values else None

    @property
    def repetitions(self) -> tuple[int, int]:
        """Number of compared repetitions of the baseline and of the candidate."""
        if self.change is not None:
            return self.change.repetitions
        before, now = self.baseline, self.candidate
        return before.sample_size if before else 0, now.sample_size if now else 0

    @property
    def is_open(self) -> bool:
        """Whether it was measured and is inconclusive."""
        return self.outcome == "inconclusive" and any(self.repetitions)

    @property
    def reason(self) -> str | None:
        """Why it cannot be tested; None if it can."""
        sides = {"baseline": self.pair.baseline, "candidate": self.pair.candidate}
        counts = dict(zip(sides, self.repetitions, strict=True))
        for side, records in sides.items():
            if not counts[side]:
                missing = "not measured in" if records else "no completed repetition of"
                return f"{missing} the {side}"
        few = [side for side, count in counts.items() if count == 1]
        return f"one repetition of the {' and the '.join(few)}" if few else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """The configurations that ran on both sides, and what else differs between the sides."""

    baseline: Side
    candidate: Side
    pairs: tuple[Pair, ...]
    """At least one."""
    differences: tuple[str, ...]
    """Differences between the environments, such as "versions: torch 2.13.0 -> 2.14.0", that forbid
    a comparison unless it is forced."""
    notes: tuple[str, ...]
    """Other differences between the sides, and configurations that are on one side only."""
    failures: Mapping[str, str]
    """Status and reason of each configuration that could not be measured, by its name."""
    machine_load: MachineLoad
    """Other load on the machine."""
    had_load_together: bool
    """Whether the sides ran in turn, both under heavy load or neither of them."""

    @property
    def repetition_seconds(self) -> list[float]:
        """Time of each repetition of all pairs on both sides, in order."""
        seconds = defaultdict[int, float](float)
        for pair in self.pairs:
            for record in (*pair.baseline, *pair.candidate):
                seconds[record.trial.repetition] += record.duration_seconds
        return [seconds[repetition] for repetition in sorted(seconds)]

    def rows(self, name: str, p_value: Callable[[Change], float]) -> list[ComparedRow]:
        """A row of the metric for each pair, without an outcome, and with the `p_value` of its
        change if that can be tested. Raises NotComparable as `Pair.unit` does."""
        metric = COMPARED_METRICS[name]
        changes = [pair.change(metric) for pair in self.pairs]
        p_values = [p_value(change) if change and change.is_tested else None for change in changes]
        corrected = holm(p_values)
        return [
            ComparedRow(
                pair=pair,
                metric=name,
                unit=pair.unit(metric),
                change=changes[number],
                p_value=p_values[number],
                p_value_corrected=corrected[number],
            )
            for number, pair in enumerate(self.pairs)
        ]

    def load_may_explain(self, outcome: Outcome) -> bool:
        """Whether load on the machine could be the reason of an outcome of `check`: of all but a
        regression between sides that had it together."""
        return outcome != "regressed" or not self.had_load_together


def compare_sides(baseline: Side, candidate: Side, *, force: bool = False) -> Comparison:
    """Pair the configurations of two sides that ran the same thing, by the names that they have in
    common.

    Settings that a selection fixes on either side are not compared, nor are repetitions. Raises
    NotComparable if no configuration is on both sides, naming the settings in which they have
    nothing in common, or, unless `force`, if they come from environments that must not be compared;
    UsageError if a side has two configurations that cannot be distinguished so, or if the sides
    share trials.
    """
    ran_in_turn = _ran_in_turn(baseline, candidate)
    keys = settings_to_match(baseline, candidate)
    first, second = baseline.configurations(keys), candidate.configurations(keys)
    if not first.keys() & second.keys():
        raise NotComparable(
            f"no configuration is in both {baseline.label} and {candidate.label}; "
            f"{_why_none(keys, first, second)}"
        )
    differences = environment_differences(baseline, candidate)
    if differences and not force:
        raise NotComparable(
            f"{baseline.label} and {candidate.label} come from different environments: "
            f"{'; '.join(differences)}. --force compares them nevertheless"
        )
    before, now = baseline.selected(), candidate.selected()
    labels = Labels.among(record.configuration for record in (*before, *now))
    settings = {key: records[0].configuration for key, records in (second | first).items()}
    ordered = sorted(
        settings, key=lambda key: order_of(settings[key], labels.implementation(settings[key]))
    )
    pairs = tuple(
        Pair(
            label=_common_label(first[key][0].configuration, second[key][0].configuration, labels),
            baseline=usable_repetitions(first[key]),
            candidate=usable_repetitions(second[key]),
            ran_in_turn=ran_in_turn,
        )
        for key in ordered
        if key in first and key in second
    )
    notes = origin_notes(baseline, candidate, pairs)
    for side, own, other in ((baseline, first, second), (candidate, second, first)):
        alone = [labels.label(settings[key]) for key in ordered if key in own and key not in other]
        notes += [f"only in {side.label}, not compared: {'; '.join(alone)}"] if alone else []
    loads = {machine_load(records).spoils_differences for records in (before, now)}
    return Comparison(
        baseline=baseline,
        candidate=candidate,
        pairs=pairs,
        differences=tuple(differences),
        notes=tuple(notes),
        failures=_failures(now, labels, "") | _failures(before, labels, " (baseline)"),
        machine_load=machine_load(now, before),
        had_load_together=ran_in_turn and len(loads) == 1,
    )


def _ran_in_turn(baseline: Side, candidate: Side) -> bool:
    """Whether both sides were measured in one run; raises UsageError if they share trials of it."""
    before, now = baseline.selected(), candidate.selected()
    if baseline.run_id is None or baseline.run_id != candidate.run_id:
        return False
    measured = {record.trial: record for record in before}
    if any(measured.get(record.trial) == record for record in now):
        raise UsageError(
            f"{baseline.label} and {candidate.label} have trials in common; compare two folders, "
            "or two parts of one, e.g. DIR:backend=gloo DIR:backend=shm"
        )
    return True


def _failures(records: Records, labels: Labels, role: str) -> dict[str, str]:
    """The configurations that could not be measured, see `Comparison.failures`."""
    failures = {}
    for configuration, repetitions in by_configuration(records).items():
        status, reason = worst_status(repetitions)
        if status.is_failure:
            failures[f"{labels.label(configuration)}{role}"] = f"{status.words}: {reason}"
    return failures


def _why_none(keys: Sequence[str], *sides: Mapping[Identity, object]) -> str:
    """The settings of which the sides have no value in common."""
    listed = list[str]()
    for number, key in enumerate(keys):
        before, now = (dict.fromkeys(identity[number] for identity in side) for side in sides)
        if not before.keys() & now.keys():
            listed.append(f"{key}: {', '.join(before)} -> {', '.join(now)}")
    if listed:
        return f"they differ in {'; '.join(listed)}"
    return "each setting occurs on both sides, but never in the same combination"


def environment_differences(baseline: Side, candidate: Side) -> list[str]:
    """Differences that forbid a comparison, such as "cpu: A -> B". Sides that mix the same
    environments do not differ."""
    before, after = baseline.used_environments(), candidate.used_environments()
    if before.keys() == after.keys():
        return []
    differences = list[str]()
    for first, second in product(before.values(), after.values()):
        if first and second:
            differences += second.differences_from(first)
        else:
            differences.append("some are not stored")
    then, now = baseline.group_classes(), candidate.group_classes()
    differences += [
        f"process group {then[backend]} -> {now[backend]}"
        for backend in then
        if now.get(backend, then[backend]) != then[backend]
    ]
    return [*dict.fromkeys(differences)]


def origin_notes(baseline: Side, candidate: Side, pairs: Sequence[Pair]) -> list[str]:
    """Differences that a comparison may be about: the user's files and the host."""
    notes: dict[str, None] = {}
    for pair in pairs:
        if pair.baseline and pair.candidate:
            old = pair.baseline[0].configuration.workload
            new = pair.candidate[0].configuration.workload
            if old.files_sha256 != new.files_sha256 and named_files(new) == named_files(old):
                notes[f"{named_files(new)} has changed between the two"] = None
    then, now = (
        dict.fromkeys(machine.hostname for machine in side.used_environments().values() if machine)
        for side in (baseline, candidate)
    )
    if then and now and then.keys() != now.keys():
        notes[f"hosts differ: {', '.join(then)} -> {', '.join(now)}"] = None
    return [*notes]


def _common_label(first: Configuration, second: Configuration, labels: Labels) -> str:
    """The parts of a configuration's name in which both agree: the implementation with its
    settings, the backend, the sizes."""
    differing = {name for name in AXES if first.setting(name) != second.setting(name)}
    read = attrgetter(*IDENTITY, "replicas_by_node")
    name, backend, size, batch, nodes = (
        a if a == b else None for a, b in zip(read(first), read(second), strict=True)
    )
    if name:
        name = series_name(labels.implementation(first, without=differing), backend)
    both = f"{labels.label(first)} -> {labels.label(second)}"
    return row_name(name or backend or "", size, nodes or (), batch) or both


def readings(records: Records, metric: Metric[Row]) -> dict[int, float]:
    """The value of a metric in each repetition that has it."""
    read = metric.of_trial
    values = ((record.trial.repetition, read(record)) for record in records if read)
    return {repetition: value for repetition, value in values if isinstance(value, int | float)}


def classify(compared: Comparison, name: str, *, within: float) -> tuple[ComparedRow, ...]:
    """The rows of a metric in `compare`. A difference of `within` counts as the same: 0.03 is 3 %.

    The outcome is "same" if the whole interval of the change lies between 1 / (1 + within) and
    1 + within; else better or worse if the p-value, corrected for all rows, is below 0.05; else
    it is inconclusive. Raises NotComparable as `Pair.unit` does.
    """
    rows = compared.rows(name, attrgetter("p_value"))
    return tuple(replace(row, outcome=_outcome(row, within)) for row in rows)


def _outcome(row: ComparedRow, within: float) -> Outcome:
    if row.change is None or row.p_value_corrected is None:
        return "inconclusive"
    low, high = row.change.estimate.ends
    if 1 / (1 + within) <= low and high <= 1 + within:
        return "same"
    if row.p_value_corrected >= ALPHA:
        return "inconclusive"
    is_speed = COMPARED_METRICS[row.metric].is_speed
    if row.change.log_ratio < 0:
        return "faster" if is_speed else "better"
    return "slower" if is_speed else "worse"
