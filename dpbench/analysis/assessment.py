"""A candidate against its baseline in every metric that was asked for, judged as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpbench.analysis.comparability import check_environments
from dpbench.analysis.comparison import Comparison, compare
from dpbench.analysis.detectable import detectable_difference
from dpbench.analysis.matching import Matched, NotComparable, Side, match
from dpbench.analysis.metrics import METRICS
from dpbench.analysis.outcome import outcome
from dpbench.analysis.verdict import ALPHA, RowVerdict, Verdict, judge
from dpbench.records import Status, TrialRecord
from dpbench.specs import TrialSpec

MOST_REPETITIONS = 50
"""More than these nobody measures for a check: the tolerance is to be raised."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Assessment:
    """The verdict, and what has to stand beside it."""

    verdict: Verdict
    matched: tuple[Matched, ...]
    notes: tuple[str, ...]
    failures: tuple[tuple[str, str], ...]
    """(Configuration, how it ended and why) of what could not be measured."""

    def unsettled(self) -> frozenset[TrialSpec]:
        """The configurations, of both sides, whose rows more repetitions may decide."""
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
    """Judges (baseline, candidate) pairs together: Holm's correction is over all of their rows.

    `tolerances` maps metrics to what they may be worse by: {"images_per_second": 0.03}. Raises
    NotComparable if nothing is on both sides, a metric was measured on neither, or, unless
    `force`, the sides come from environments that must not be compared.
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
            *different,
            *_left_alone(matched),
            *_beyond_reach(verdict.rows),
        ),
        failures=_failures([r for both in matched for r in both.candidate.selected()]),
    )


def _left_alone(matched: Sequence[Matched]) -> list[str]:
    return [
        f"only in {side.label}, not judged: {'; '.join(labels)}"
        for both in matched
        for side, labels in (
            (both.baseline, both.only_in_baseline),
            (both.candidate, both.only_in_candidate),
        )
        if labels
    ]


def _failures(records: Sequence[TrialRecord]) -> tuple[tuple[str, str], ...]:
    groups: dict[TrialSpec, list[TrialRecord]] = {}
    for record in records:
        groups.setdefault(record.trial.configuration, []).append(record)
    ends = ((spec.label, outcome(group)) for spec, group in groups.items())
    return tuple(
        (label, f"{end.status.words}: {end.reason}")
        for label, end in ends
        if end.status not in (Status.COMPLETED, Status.SKIPPED)
    )


def _beyond_reach(rows: Sequence[RowVerdict]) -> list[str]:
    """Of each metric whose tolerance is too small for the data, the row that is furthest off."""
    notes = []
    for metric in dict.fromkeys(row.comparison.metric for row in rows):
        effects = [
            (row.minimum_detectable_effect, row)
            for row in rows
            if row.comparison.metric == metric and row.minimum_detectable_effect is not None
        ]
        largest, row = max(effects, key=lambda pair: pair[0], default=(0.0, None))
        if row is not None and largest > row.tolerance:
            notes.append(_beyond_reach_note(row, largest))
    return notes


def _beyond_reach_note(row: RowVerdict, effect: float) -> str:
    comparison = row.comparison
    size = comparison.slowdown.sample_size if comparison.slowdown else 0
    needed = _repetitions_needed(row, size)
    remedy = (
        "raise the tolerance, or find a quieter machine"
        if needed is None
        else f"raise --repetitions to {needed} or the tolerance"
    )
    return (
        f"tolerance {100 * row.tolerance:.3g} % is below the smallest effect that {size} "
        f"repetitions can show here, {_percent(effect)} ({comparison.metric} of "
        f"{comparison.label}): {remedy}"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.995 else f"{100 * share:.0f} %"


def _repetitions_needed(row: RowVerdict, size: int) -> int | None:
    """The fewest repetitions, more than `size`, that would detect the tolerance at this noise."""
    comparison = row.comparison
    more = np.arange(size + 1, MOST_REPETITIONS + 1, dtype=np.float64)
    error = (comparison.standard_error or 0.0) * np.sqrt(size / more)
    freedom = (more - 1) * (1 if comparison.paired else 2)
    enough = detectable_difference(error, freedom) <= comparison.limit(row.tolerance)
    return int(more[enough][0]) if enough.any() else None
