"""The headline: the fastest configuration, the best scaling, the largest loss.

Copies that do not train together (`independent`) are never the best, nor are configurations that
did not complete or had wrong gradients. If the interval of another configuration overlaps that of
the best, the two are statistically tied, and the headline names it: overlap is a cautious test,
which suits a best that was picked out of many. A best that ran only once is tied with everything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.diagnosis.advice import NOTHING_LARGE, Advice
from dpbench.analysis.diagnosis.explanation import Explanation
from dpbench.analysis.estimate import Estimate
from dpbench.records.trial import Status
from dpbench.specs import TrialSpec
from dpbench.specs.traits import INDEPENDENT, SINGLE

BUSY = "the machine was busy, and no figure is to be trusted"
Rows = Sequence[ConfigurationSummary]
Read = Callable[[ConfigurationSummary], Estimate | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Best:
    """A number that no other configuration exceeds."""

    value: Estimate
    row: ConfigurationSummary
    rivals: tuple[ConfigurationSummary, ...]
    """Configurations whose intervals overlap the best one's, the nearest first."""
    others: int
    """Number of configurations it was compared with."""

    @property
    def resolved(self) -> bool:
        """False for a single run: the noise within it is far below the spread between runs, so
        nothing distinguishes the best from any other."""
        return self.value.basis == "repetitions"


@dataclass(frozen=True, kw_only=True, slots=True)
class LargestLoss:
    """The largest loss of a configuration."""

    share: Estimate
    """Share of the step's seconds that is lost."""
    row: ConfigurationSummary
    loss: str
    """Name of the loss."""
    remedy: str
    """Advice on what to try, or why there is nothing to try."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NoResult:
    """Reason why a result is missing."""

    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Headline:
    """The three results that a reader wants first."""

    fastest: Best | NoResult
    scaling: Best | NoResult
    """The highest efficiency at the largest number of replicas."""
    limit: LargestLoss | NoResult
    """The largest loss of the fastest configuration with more than one replica."""
    synthetic: bool = False
    """Whether the numbers come from a cost model."""
    disturbance: str | None = None
    """Other load on the machine, if that makes the figures doubtful."""


def headline(
    rows: Rows,
    explanations: Sequence[Explanation] = (),
    advice: Sequence[Sequence[Advice]] = (),
    *,
    synthetic: bool = False,
    disturbance: str | None = None,
    untrustworthy: bool = False,
) -> Headline:
    """The headline of all rows of one table; `advice` belongs to `explanations`, one by one, which
    may be of more rows than these.

    If the machine was too busy for the figures to be trusted, nothing is named.
    """
    if untrustworthy:
        nothing = NoResult(reason=BUSY)
        return Headline(
            fastest=nothing,
            scaling=nothing,
            limit=nothing,
            synthetic=synthetic,
            disturbance=disturbance,
        )
    usable = [row for row in rows if _counts(row)]
    found = {
        explanation.row.configuration: tuple(lines)
        for explanation, lines in zip(explanations, advice, strict=True)
    }
    return Headline(
        fastest=_fastest(rows, usable),
        scaling=_best_scaling(rows, usable),
        limit=_limit(_fastest(rows, [row for row in usable if row.group_size > 1]), found),
        synthetic=synthetic,
        disturbance=disturbance,
    )


def trains_together(row: ConfigurationSummary) -> bool:
    """Whether replicas train together; False for copies that train independently."""
    return _is_not(INDEPENDENT, row)


def _is_not(implementation: str, row: ConfigurationSummary) -> bool:
    """Compares without the settings in brackets: "single(bf16)" is `single`."""
    return row.implementation.partition("(")[0] != implementation


def _counts(row: ConfigurationSummary) -> bool:
    completed = row.status is Status.COMPLETED and row.verified is not False
    return completed and trains_together(row)


def _fastest(rows: Rows, usable: Rows) -> Best | NoResult:
    """The fastest row by throughput; for published times, by the least time."""
    if len(units := {row.throughput.unit for row in usable if row.throughput}) > 1:
        return NoResult(reason=f"speeds are in different units: {', '.join(sorted(units))}")
    best = _best(usable, lambda row: row.throughput)
    best = best or _best(usable, lambda row: row.duration, least=True)
    if best is not None and best.value.is_too_noisy:
        return NoResult(reason="the speeds are too noisy")
    return best or NoResult(reason=_why_no_speed(rows))


def _why_no_speed(rows: Rows) -> str:
    if not rows:
        return "no trial was recorded"
    ends = sorted({row.status.words for row in rows if row.status is not Status.COMPLETED})
    return f"no configuration completed ({', '.join(ends)})" if ends else "no speed is known"


def _best_scaling(rows: Rows, usable: Rows) -> Best | NoResult:
    scaled = [row for row in usable if row.efficiency and row.group_size > 1]
    if scaled:
        largest = max(row.group_size for row in scaled)
        best = _best([row for row in scaled if row.group_size == largest], lambda r: r.efficiency)
        assert best is not None
        return NoResult(reason="the speedups are too noisy") if best.value.is_too_noisy else best
    return NoResult(reason=_why_no_scaling(rows) if usable else "no configuration completed")


def _why_no_scaling(rows: Rows) -> str:
    """Reason why there is no scaling; counts all rows, completed or not; `single` is no group of
    one replica."""
    scalable = (row for row in rows if trains_together(row) and _is_not(SINGLE, row))
    sizes = sorted({row.group_size for row in scalable})
    if not sizes:
        return f"only {SINGLE} was measured, which has one replica"
    if len(sizes) == 1:
        return f"one group size was measured ({sizes[0]}): a speedup needs 1 and a larger one"
    if 1 not in sizes:
        return (
            "no implementation was measured at group size 1, which a speedup is against; add 1 to "
            "--group-sizes"
        )
    return "no configuration completed at group size 1 and at a larger one"


def _best(rows: Rows, read: Read, *, least: bool = False) -> Best | None:
    measured = [(value, row) for row in rows if (value := read(row)) is not None]
    measured.sort(key=lambda one: one[0].value, reverse=not least)
    if not measured:
        return None
    (value, row), *rest = measured
    return Best(
        value=value,
        row=row,
        rivals=tuple(other for theirs, other in rest if _overlap(value, theirs)),
        others=len(rest),
    )


def _overlap(one: Estimate, other: Estimate) -> bool:
    (low, high), (lower, higher) = one.ends, other.ends
    return low <= higher and lower <= high


def _limit(
    best: Best | NoResult, found: Mapping[TrialSpec | None, Sequence[Advice]]
) -> LargestLoss | NoResult:
    if isinstance(best, NoResult):
        return NoResult(reason="no configuration with more than one replica completed")
    row = best.row
    if row.configuration is None:
        return NoResult(reason="published numbers do not tell: that takes the steps of every rank")
    if advice := found.get(row.configuration):
        most = advice[0]
        return LargestLoss(share=most.share, row=row, loss=most.loss, remedy=most.remedy)
    return NoResult(reason=f"{row.label}: {NOTHING_LARGE}")
