"""A candidate against its baseline in every requested metric, judged as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dpbench import units
from dpbench.analysis.comparisons.comparability import check_environments
from dpbench.analysis.comparisons.comparison import Comparison, compare
from dpbench.analysis.comparisons.matching import Matched, NotComparable, Side, match
from dpbench.analysis.comparisons.verdict import ALPHA, RowVerdict, Verdict, judge
from dpbench.analysis.configuration import by_configuration, outcome
from dpbench.analysis.fields.levels import METRICS
from dpbench.records import Status
from dpbench.specs import TrialSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Assessment:
    """The verdict, with notes and failures."""

    verdict: Verdict
    matched: tuple[Matched, ...]
    notes: tuple[str, ...]
    failures: tuple[tuple[str, str], ...]
    """(Configuration, status and reason) of configurations that could not be measured."""

    def unsettled(self) -> frozenset[TrialSpec]:
        """The configurations, of both sides, whose rows may be decided by more repetitions."""
        labels = {
            (row.comparison.candidate_label, row.comparison.label)
            for row in self.verdict.rows
            if row.outcome == "inconclusive" and row.comparison.standard_error is not None
        }
        return frozenset(
            record.trial.configuration
            for both in self.matched
            for pair in both.pairs
            if (both.candidate.label, pair.label) in labels
            for records in (pair.baseline, pair.candidate)
            for record in records.values()
        )


def assess(
    sides: Sequence[tuple[Side, Side]],
    tolerances: Mapping[str, float],
    *,
    force: bool = False,
    alpha: float = ALPHA,
) -> Assessment:
    """Judge (baseline, candidate) pairs together: Holm's correction is over all of their rows.

    `tolerances` maps metrics to the change for the worse that is allowed: {"images_per_second":
    0.03}. Raises NotComparable if nothing is on both sides, a metric was measured on neither, or,
    unless `force`, the sides come from environments that must not be compared.
    """
    matched = tuple(match(baseline, candidate, force=force) for baseline, candidate in sides)
    different = [note for both in matched for note in check_environments(both, force=force)]
    comparisons: list[Comparison] = []
    for metric in tolerances:
        found = [row for both in matched for row in compare(both, METRICS[metric])]
        if not found:
            raise NotComparable(
                f"{metric} was measured in no configuration of {matched[0].baseline.label} and "
                f"{matched[0].candidate.label}; take another --metric"
            )
        comparisons += found
    verdict = judge(comparisons, tolerances, alpha=alpha)
    return Assessment(
        verdict=verdict,
        matched=matched,
        notes=(
            *dict.fromkeys(different),
            *dict.fromkeys(_forced(both) for both in matched if both.put_aside),
            *_left_alone(matched),
            *_settled(matched),
            *_beyond_reach(verdict.rows),
        ),
        failures=_failures(matched),
    )


def _forced(matched: Matched) -> str:
    return f"forced: compared although they differ in {', '.join(matched.put_aside)}"


def _left_alone(matched: Sequence[Matched]) -> list[str]:
    """Configurations without a partner; of a baseline of several candidates, those that no
    candidate has."""
    alone: dict[str, tuple[str, ...]] = {}
    for both in matched:
        for side, labels in (
            (both.baseline, both.only_in_baseline),
            (both.candidate, both.only_in_candidate),
        ):
            before = alone.get(side.label, labels)
            alone[side.label] = tuple(label for label in before if label in labels)
    return [
        f"only in {side}, not judged: {'; '.join(found)}" for side, found in alone.items() if found
    ]


def _settled(matched: Sequence[Matched]) -> list[str]:
    return [
        f"{both.baseline.label} and {both.candidate.label} differ in {'; '.join(both.settled)}"
        for both in matched
        if both.settled
    ]


def _failures(matched: Sequence[Matched]) -> tuple[tuple[str, str], ...]:
    """Failures of candidates, then of baselines; a baseline of several candidates counts once."""
    candidates = [(both.candidate, "") for both in matched]
    baselines = [(both.baseline, " (baseline)") for both in matched]
    found = {
        f"{spec.label}{role}": outcome(group)
        for side, role in (*candidates, *baselines)
        for spec, group in by_configuration(side.selected()).items()
    }
    return tuple(
        (label, f"{end.status.words}: {end.reason}")
        for label, end in found.items()
        if end.status not in (Status.COMPLETED, Status.SKIPPED)
    )


def _beyond_reach(rows: Sequence[RowVerdict]) -> list[str]:
    """For each metric whose tolerance is too small for the data, the row that is furthest off."""
    furthest: dict[str, tuple[float, RowVerdict]] = {}
    for row in rows:
        metric, effect = row.comparison.metric, row.minimum_detectable_effect
        if row.outcome != "inconclusive" or effect is None or effect <= row.tolerance:
            continue
        if metric not in furthest or effect > furthest[metric][0]:
            furthest[metric] = (effect, row)
    return [_beyond_reach_note(row, effect) for effect, row in furthest.values()]


def _beyond_reach_note(row: RowVerdict, effect: float) -> str:
    comparison = row.comparison
    sizes = " and ".join(map(str, dict.fromkeys(comparison.repetitions)))
    needed = row.repetitions_needed
    remedy = (
        "raise the tolerance, or find a quieter machine"
        if needed is None
        else f"raise --repetitions to {needed} or the tolerance"
    )
    return (
        f"tolerance {units.percent(row.tolerance, 3)} is below the smallest effect that {sizes} "
        f"repetitions can show here, {units.percent(effect, 3)} ({comparison.metric} of "
        f"{comparison.label}): {remedy}"
    )
