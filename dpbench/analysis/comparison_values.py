"""The values that a comparison starts from: a number per run of both sides, and what forbids to
relate them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from dpbench.analysis import convergence, throughput
from dpbench.analysis.estimate import FEWEST_PAIRS
from dpbench.analysis.fields.metric import Metric, Reading
from dpbench.analysis.loss_agreement import are_one_sample
from dpbench.analysis.matching import Matched, Pair
from dpbench.records import TrialRecord

Values = Mapping[int, float]
"""By repetition."""


class ComparedValues(NamedTuple):
    """Both sides of a pair in one metric; `obstacle` says why they have no ratio, if so."""

    pair: Pair
    baseline: Values
    candidate: Values
    paired: bool
    reference: float
    obstacle: str | None

    @property
    def repetitions(self) -> tuple[int, int]:
        """How many of each side were compared."""
        if not self.paired:
            return len(self.baseline), len(self.candidate)
        shared = len(self.baseline.keys() & self.candidate.keys())
        return shared, shared


def compared_values(
    pair: Pair, matched: Matched, metric: Metric, first: Reading, second: Reading
) -> ComparedValues | None:
    """None if the pair completed and neither side has the metric.

    `first` and `second` read it from runs of the baseline and of the candidate.
    """
    baseline, candidate = _values(pair.baseline, first), _values(pair.candidate, second)
    if (pair.baseline or pair.candidate) and not (baseline or candidate):
        return None
    reference = 1.0
    if metric.reference is not None:
        known = _values(pair.baseline, metric.reference).values()
        reference = math.fsum(known) / len(known) if known else 0.0
    shared = baseline.keys() & candidate.keys()
    return ComparedValues(
        pair=pair,
        baseline=baseline,
        candidate=candidate,
        paired=matched.same_sweep and len(shared) >= FEWEST_PAIRS,
        reference=reference,
        obstacle=_obstacle(pair, baseline, candidate, metric, reference),
    )


def _values(records: Mapping[int, TrialRecord], read: Reading) -> dict[int, float]:
    values = {repetition: read(record) for repetition, record in records.items()}
    return {repetition: value for repetition, value in values.items() if value is not None}


def _obstacle(
    pair: Pair, baseline: Values, candidate: Values, metric: Metric, reference: float
) -> str | None:
    sides = (("baseline", pair.baseline, baseline), ("candidate", pair.candidate, candidate))
    for name, records, values in sides:
        if not records:
            return f"no completed repetition of the {name}"
        if not values:
            return f"not measured in the {name}"
    for name, _, values in sides:
        if not metric.additive and min(values.values()) <= 0:
            return f"values of the {name} that are not positive"
    if metric.counts_steps and (different := _different_steps(pair)):
        return different
    if metric.of_losses and (curve := _single_curve(pair)):
        return curve
    return None if reference > 0 else "nothing positive to relate the difference to"


def _different_steps(pair: Pair) -> str | None:
    """Writes "timed steps differ: 50 -> 100"."""

    def warmup(records: Iterable[TrialRecord]) -> list[int]:
        return sorted({record.trial.warmup_steps for record in records})

    def timed(records: Iterable[TrialRecord]) -> list[int]:
        return sorted({len(throughput.step_seconds(record)) for record in records})

    for name, count in (("timed", timed), ("warmup", warmup)):
        first, second = count(pair.baseline.values()), count(pair.candidate.values())
        if len({*first, *second}) > 1:
            return f"{name} steps differ: {_listed(first)} -> {_listed(second)}"
    return None


def _listed(counts: list[int]) -> str:
    return f"{counts[0]}" if len(counts) == 1 else f"{counts[0]}–{counts[-1]}"


def _single_curve(pair: Pair) -> str | None:
    """Names a side whose repetitions are one sample, unless both sides train alike.

    Repetitions have the same seed, so their spread is rounding, and anything would be beyond it.
    """
    first, second = (
        [losses for r in records.values() if convergence.is_finite(losses := convergence.losses(r))]
        for records in (pair.baseline, pair.candidate)
    )
    if are_one_sample([*first, *second]):
        return None
    for name, curves in (("baseline", first), ("candidate", second)):
        if len(curves) > 1 and are_one_sample(curves):
            return f"repetitions of the {name} follow one loss curve: only other seeds tell"
    return None
