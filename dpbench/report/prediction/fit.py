"""Text and JSON of `dpbench fit`: the laws, and what they predict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dpbench import units
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.laws.band import CONFIDENCE, LARGE_MISFIT, LawError
from dpbench.analysis.laws.basis import DEFAULT, NODE_TERMS, SATURATED
from dpbench.analysis.laws.study import Row, Study
from dpbench.report.answer import Answer, bullets, with_ends
from dpbench.report.numbers import (
    or_missing,
    rounded,
    significant,
    time_text,
    time_unit,
)
from dpbench.report.prediction.answer import kind_meanings, summary_table
from dpbench.report.table import MISSING, bare_table, text_table
from dpbench.report.terminal import bullet, folded, write_table

MORE = "the laws, their errors, and how to read the numbers: --verbose"
TRENDS = {
    "growing": "the overhead grows faster than a serial part would",
    "constant": "within what can be told, as of a serial part (Amdahl)",
    "falling": "the overhead saturates, as no serial part does; Amdahl's law is too pessimistic",
}
BELOW_ZERO = "below zero scaling is faster than linear, which no serial part explains"
SMALLEST_ERROR = 1e-4
"""A smaller one might as well be none."""


def answer(studies: Sequence[Study], *, notes: Sequence[str] = (), verbose: bool = True) -> Answer:
    """A block for each series, then what holds for all; one table unless `verbose`. As data, a row
    for every series and group size that was asked for."""
    of_series = [note for one in studies for note in one.series.notes]
    data = [_row(one, row) for one in studies for row in one.predicted]
    if not verbose:
        kinds = kind_meanings(row.prediction.kind for one in studies for row in one.predicted)
        lines = bullets(filter(None, dict.fromkeys([kinds, *of_series, *notes, MORE])))
        return Answer(paragraphs=(_brief(studies), lines), data=data)
    return Answer(
        paragraphs=(
            *("\n".join([one.series.label, _table(one), "", *_law(one)]) for one in studies),
            bullets([*_common(studies), *dict.fromkeys([*of_series, *notes])]),
        ),
        data=data,
    )


def _brief(studies: Sequence[Study]) -> str:
    """What was measured and predicted, without the laws behind it."""
    same_unit = len({one.series.unit for one in studies}) == 1
    unit = studies[0].series.unit
    rows = []
    for one in studies:
        shown = {row.prediction.group_size: row for row in (*one.predicted, *one.measured)}
        for size in sorted(shown):
            row = shown[size]
            cells = _cells(row, withheld=True, relative=one.series.relative)
            group, step, speed, share, _, _, kept_back, kind = cells
            if not same_unit and speed != MISSING:
                speed = f"{speed} {one.series.unit}"
            rows.append([one.series.label, group, step, speed, share, kept_back, kind])
    speed = unit[:1].upper() + unit[1:] if same_unit else "Speed"
    headers = ("Series", "Group", "Step", speed, "Efficiency", "Withheld", "Kind")
    return summary_table(rows, headers, ("Series", "Kind"))


def seconds(estimate: Estimate) -> str:
    """A step time with both ends of its band, in one unit: "113 (110–129) ms"."""
    size, unit = time_unit(estimate.value)
    return f"{rounded(estimate, scale=1 / size)} {unit}"


def _table(one: Study) -> str:
    shown = {row.prediction.group_size: row for row in (*one.predicted, *one.measured)}
    rows = [shown[size] for size in sorted(shown)]
    withheld = any(row.withheld is not None for row in rows)
    unit = one.series.unit
    headers = ["Group", "Step", unit[:1].upper() + unit[1:], "Efficiency", "Karp-\nFlatt"]
    headers += ["Last eff.\nkept", *(["Withheld"] if withheld else []), "Kind"]
    cells = [_cells(row, withheld=withheld, relative=one.series.relative) for row in rows]
    return write_table(text_table(headers, cells, words=("Kind",)))


def _cells(row: Row, *, withheld: bool, relative: bool) -> list[str]:
    found = row.prediction
    step = time_text if found.kind == "measured" else seconds
    return [
        f"{found.group_size:,}",
        MISSING if relative else or_missing(found.step_seconds, step),
        or_missing(found.throughput, rounded),
        or_missing(row.efficiency, _share),
        or_missing(row.karp_flatt, significant),
        _plain(row.last_efficiency),
        *([_withheld(row)] if withheld else []),
        found.kind,
    ]


def _share(share: Estimate) -> str:
    return f"{rounded(share, scale=100)} %"


def _plain(value: float | None) -> str:
    return MISSING if value is None else f"{value:,.5g}" if value < 1e5 else f"{value:,.0f}"


def _withheld(row: Row) -> str:
    """The measurement that the fit did not see, and by how much the prediction missed it."""
    if row.withheld is None:
        return MISSING
    predicted = row.prediction.throughput
    if predicted is None:
        return _plain(row.withheld)
    missed = predicted.value / row.withheld - 1
    return f"{_plain(row.withheld)} ({units.fixed_percent(missed, 1, signed=True)})"


def _law(one: Study) -> list[str]:
    """The terms with their mechanism, and how well they say what they have not seen."""
    terms = [
        [term.name, _cost(cost, term.formula, relative=one.series.relative), term.mechanism]
        for term, cost in ((term, one.fit.cost(term)) for term in one.fit.terms)
    ]
    lines = write_table(folded(bare_table(terms), ["2"])).splitlines()[1:-1]  # without rules
    what = "step time in steps of one replica" if one.series.relative else "step time"
    return [f"{what}, fitted to {len(one.fit.series.points)} group sizes:", *lines, *_said(one)]


def _cost(cost: Estimate, formula: str, *, relative: bool) -> str:
    """A cost; in a table of speedups, in steps of one replica."""
    if relative:
        return f"{rounded(cost)} × {formula}"
    if cost.value > 0:
        return f"{seconds(cost)} × {formula}"
    return f"0 (up to {units.seconds(cost.high)}) × {formula}" if cost.high else "0"


def _said(one: Study) -> list[str]:
    said = []
    if (left := one.leave_one_out) is not None:
        said.append(
            f"leave-one-out error {_error(left.law)}; keeping the last efficiency "
            f"{_error(left.last_efficiency)} (mean over {left.points} sizes)"
        )
    if one.trend is not None:
        fractions = [row.karp_flatt for row in one.measured if row.karp_flatt]
        first, last = fractions[0], fractions[-1]
        below = min(first.value, last.value) < 0
        said.append(
            f"Karp-Flatt's serial fraction is {one.trend}, {significant(first)} to "
            f"{significant(last)}: "
            f"{BELOW_ZERO if below else TRENDS[one.trend]}"
        )
    size, miss = one.fit.largest_miss
    if abs(miss) > LARGE_MISFIT:
        said.append(
            f"the law misses the measured step at {size} by "
            f"{units.fixed_percent(miss, signed=True)}: something changes along the sizes that no "
            "smooth cost explains"
        )
    if _is_lifted(one):
        said.append(
            f"the law ends below the step measured at {one.fit.series.group_sizes[-1]}, within its "
            "noise: predictions beyond keep that step"
        )
    if one.fit.ambiguous:
        kept = SATURATED in one.fit.ambiguous
        predicted = "keeps the last efficiency" if kept else "is of the slowest beyond the data"
        said.append(
            f"these group sizes cannot tell {' from '.join(one.fit.ambiguous)}: "
            f"the band spans what each would give; the prediction {predicted}"
        )
    if one.faster_than_linear:
        sizes = ", ".join(map(str, one.faster_than_linear))
        said.append(f"faster than linear at {sizes}: check the baseline")
    return [bullet(line) for line in said]


def _is_lifted(one: Study) -> bool:
    """Whether a prediction keeps the last measured step; rounding alone is no difference."""
    sizes = [row.prediction.group_size for row in one.predicted if row.prediction.step_seconds]
    return any(one.fit.seconds(n) > one.fit.law(n) * (1 + 1e-9) for n in sizes)


def _law_error(error: LawError) -> str:
    low, high = (math.expm1(end) for end in error.reach(1.0))
    return (
        f"{units.fixed_percent(-low, 1)} faster to {units.fixed_percent(high, 1)} slower "
        f"({error.hold_outs} hold-outs of {error.source})"
    )


def _common(studies: Sequence[Study]) -> list[str]:
    bases = sorted({one.baseline.group_size for one in studies})
    unknown = any(one.fit.draws.shape[1] < 100 for one in studies)
    refusals = [
        f"refused: {row.prediction.reason}"
        for one in studies
        for row in one.predicted
        if row.prediction.reason
    ]
    errors = dict.fromkeys(
        _law_error(one.fit.misspecification.beyond)
        + (", fitted to two group sizes" if len(one.fit.series.points) == 2 else "")
        for one in studies
    )
    notes = [
        *dict.fromkeys(refusals),
        f"efficiency and Karp-Flatt against group size {', '.join(map(str, bases))}; measured "
        f"values with their 95 % interval, where there is one (n = {_sample_sizes(studies)})",
        f"band of predictions: {units.fixed_percent(CONFIDENCE)}, the noise of the points and the "
        f"error of the law; one doubling beyond the data the latter makes a step "
        f"{'; or '.join(errors)}; that it grows with the root of the doublings is an assumption",
    ]
    if others := [one.series.label for one in studies if not _is_calibrated(one)]:
        notes.append(
            f"that error was found with {', '.join(DEFAULT)} in weak scaling; with other terms, or "
            "in strong scaling, it is not known, and the band may be too narrow: "
            + "; ".join(others)
        )
    if unknown:
        notes.append(
            "single values without repetitions: their noise is not known and not in the band"
        )
    return notes


def _is_calibrated(one: Study) -> bool:
    """Whether the error of a law was found with such terms; those of nodes are of their kind."""
    names = {term.name for term in one.fit.terms} - {*NODE_TERMS, SATURATED}
    return one.series.scaling == "weak" and names == set(DEFAULT)


def _error(share: float) -> str:
    return (
        units.percent(share)
        if share >= SMALLEST_ERROR
        else f"< {units.exact_percent(SMALLEST_ERROR)}"
    )


def _sample_sizes(studies: Sequence[Study]) -> str:
    """Sample sizes of the measured points: "1", "3–5"."""
    points = (point for one in studies for point in one.fit.series.points)
    return units.span(point.step_seconds.sample_size for point in points)


def _row(one: Study, row: Row) -> dict[str, Any]:
    found = row.prediction
    speed = found.throughput
    step = None if one.series.relative else found.step_seconds
    return {
        "series": one.series.label,
        "group_size": found.group_size,
        "throughput": None if speed is None else speed.value,
        "low": None if speed is None else speed.low,
        "high": None if speed is None else speed.high,
        "kind": found.kind,
        "unit": one.series.unit,
        "confidence": None if speed is None or speed.low is None else speed.confidence,
        "sample_size": None if speed is None else speed.sample_size,
        **with_ends("step_seconds", step),
        "efficiency": None if row.efficiency is None else row.efficiency.value,
        "last_efficiency_throughput": row.last_efficiency,
        "withheld_throughput": row.withheld,
        "reason": found.reason,
    }
