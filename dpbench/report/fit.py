"""Fitted laws and their predictions as people and programs read them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from tabulate import tabulate

from dpbench import units
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.laws.band import CONFIDENCE
from dpbench.analysis.laws.study import Row, Study
from dpbench.report.cells import or_missing, percentage
from dpbench.report.notes import bullet
from dpbench.report.numbers import MISSING, compact, compact_time, decimals, plus_minus

TRENDS = {
    "growing": "the overhead grows faster than a serial part would",
    "constant": "within what can be told, as of a serial part (Amdahl)",
    "falling": "the overhead saturates, as no serial part does; Amdahl's law is too pessimistic",
}
WIDE_OF_ITS_POINTS = 0.05
"""A law that misses a point of its own by more has not seen everything that goes on."""


def render(studies: Sequence[Study], *, notes: Sequence[str] = ()) -> str:
    """A block for each series, then what holds for all."""
    blocks = ["\n".join([one.series.label, _table(one), "", *_law(one)]) for one in studies]
    of_series = [note for one in studies for note in one.series.notes]
    below = [*_common(studies), *dict.fromkeys([*of_series, *notes])]
    lines = ["\n\n".join(blocks), "", *map(bullet, below)]
    return "\n".join(line.rstrip() for line in "\n".join(lines).splitlines()) + "\n"


def to_json(studies: Sequence[Study]) -> str:
    """A row for every series and group size that was asked for."""
    rows = [_row(one, row) for one in studies for row in one.predicted]
    return json.dumps(rows, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def ranged(estimate: Estimate, *, scale: float = 1.0, plain_decimals: int = 1) -> str:
    """A band with both ends, since it is lopsided: "4,544 (3,980–4,640)"; alone, "4,543.5"."""
    value = estimate.value * scale
    if estimate.interval is None:
        return f"{value:,.{plain_decimals}f}"
    low, high = (end * scale for end in estimate.interval)
    widest = max(high - value, value - low)
    # Two digits of the value at the least, however wide the band.
    places = decimals(min(widest, 0.19 * value), value) if widest > 0 else plain_decimals
    return f"{value:,.{places}f} ({low:,.{places}f}–{high:,.{places}f})"


def seconds(estimate: Estimate) -> str:
    """A step time with both ends of its band, in one unit: "113 (110–129) ms"."""
    size, unit = next(
        ((s, u) for s, u in ((1.0, "s"), (1e-3, "ms")) if estimate.value >= s), (1e-6, "µs")
    )
    digits = 2 - math.floor(math.log10(estimate.value / size))
    return f"{ranged(estimate, scale=1 / size, plain_decimals=max(0, digits))} {unit}"


def _table(one: Study) -> str:
    shown = {row.prediction.group_size: row for row in (*one.predicted, *one.measured)}
    rows = [shown[size] for size in sorted(shown)]
    withheld = any(row.withheld is not None for row in rows)
    unit = one.series.unit
    headers = ["Group", "Step", unit[:1].upper() + unit[1:], "Efficiency", "Karp-Flatt"]
    headers += ["Last eff. kept", *(["Withheld"] if withheld else []), "Kind"]
    text: str = tabulate(
        [_cells(row, withheld=withheld, relative=one.series.relative) for row in rows],
        headers=headers,
        disable_numparse=True,
        colalign=(*("right",) * (len(headers) - 1), "left"),
    )
    return text


def _cells(row: Row, *, withheld: bool, relative: bool) -> list[str]:
    found = row.prediction
    modelled = found.kind != "measured"
    return [
        f"{found.group_size:,}",
        MISSING
        if relative
        else or_missing(found.step_seconds, seconds if modelled else compact_time),
        or_missing(
            found.throughput, ranged if modelled else lambda e: plus_minus(e, plain_decimals=1)
        ),
        _share(row.efficiency) if modelled else percentage(row.efficiency),
        or_missing(row.karp_flatt, compact),
        _plain(row.last_efficiency),
        *([_withheld(row)] if withheld else []),
        found.kind,
    ]


def _share(value: Estimate | None) -> str:
    return MISSING if value is None else f"{ranged(value, scale=100)} %"


def _plain(value: float | None) -> str:
    return MISSING if value is None else f"{value:,.5g}" if value < 1e5 else f"{value:,.0f}"


def _withheld(row: Row) -> str:
    """The measurement that the fit did not see, and by how much the prediction missed it."""
    if row.withheld is None:
        return MISSING
    predicted = row.prediction.throughput
    missed = "" if predicted is None else f" ({predicted.value / row.withheld - 1:+.1%})"
    return f"{_plain(row.withheld)}{missed}".replace("%", " %")


def _law(one: Study) -> list[str]:
    """The terms with their mechanism, and how well they say what they have not seen."""
    terms = [
        (term.name, _cost(cost, term.formula, relative=one.series.relative), term.mechanism)
        for term, cost in ((term, one.fit.cost(term)) for term in one.fit.terms)
    ]
    lines = tabulate(terms, tablefmt="plain", disable_numparse=True).splitlines()
    what = "step time in steps of one replica" if one.series.relative else "step time"
    return [f"{what}, fitted to {len(one.fit.series.points)} group sizes:", *lines, *_said(one)]


def _cost(cost: Estimate, formula: str, *, relative: bool) -> str:
    """Of a table of speedups, in steps of one replica."""
    if relative:
        return f"{ranged(cost, plain_decimals=4)} × {formula}"
    if cost.value > 0:
        return f"{seconds(cost)} × {formula}"
    return f"0 (up to {units.seconds(cost.high)}) × {formula}" if cost.high else "0"


def _said(one: Study) -> list[str]:
    said = []
    if (left := one.leave_one_out) is not None:
        said.append(
            f"leave-one-out error {units.percent(left.law)}; keeping the last efficiency "
            f"{units.percent(left.last_efficiency)} (mean over {left.points} sizes)"
        )
    if one.trend is not None:
        fractions = [row.karp_flatt.value for row in one.measured if row.karp_flatt]
        said.append(
            f"Karp-Flatt's serial fraction is {one.trend}, {fractions[0]:.4f} to "
            f"{fractions[-1]:.4f}: {TRENDS[one.trend]}"
        )
    size, miss = one.fit.largest_miss
    if abs(miss) > WIDE_OF_ITS_POINTS:
        said.append(
            f"the law misses the measured step at {size} by {miss:+.0%}: something changes along "
            "the sizes that no smooth cost explains; expect misses beyond the band".replace(
                "%", " %"
            )
        )
    if one.fit.ambiguous:
        said.append(
            f"these group sizes cannot tell {' from '.join(one.fit.ambiguous)}: "
            "the band spans both, the prediction is the slower one"
        )
    if one.faster_than_linear:
        sizes = ", ".join(map(str, one.faster_than_linear))
        said.append(f"faster than linear at {sizes}: check the baseline")
    return [bullet(line) for line in said]


def _common(studies: Sequence[Study]) -> list[str]:
    error = studies[0].fit.misspecification.beyond
    bases = sorted({one.baseline.group_size for one in studies})
    unknown = any(len(one.fit.draws) < 100 for one in studies)
    refusals = [
        f"refused: {row.prediction.reason}"
        for one in studies
        for row in one.predicted
        if row.prediction.reason
    ]
    low, high = (math.expm1(end) for end in error.reach(1.0))
    notes = [
        *dict.fromkeys(refusals),
        f"efficiency and Karp-Flatt against group size {', '.join(map(str, bases))}; measured "
        f"values with their 95 % interval, where there is one (n = {_sample_sizes(studies)})",
        f"band of predictions: {CONFIDENCE:.0%}".replace("%", " %")
        + f", the noise of the points and the error of the law; the latter makes a step "
        f"{-100 * low:.1f} % faster to {100 * high:.1f} % slower one doubling beyond the data, "
        f"and grows with the root of the doublings (an assumption; {error.hold_outs} hold-outs "
        f"of {error.source})",
    ]
    if unknown:
        notes.append(
            "single values without repetitions: their noise is not known and not in the band"
        )
    return notes


def _sample_sizes(studies: Sequence[Study]) -> str:
    """Of the measured points: "1", "3–5"."""
    sizes = sorted({p.step_seconds.sample_size for one in studies for p in one.fit.series.points})
    return str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]}–{sizes[-1]}"


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
        "step_seconds": None if step is None else step.value,
        "step_seconds_low": None if step is None else step.low,
        "step_seconds_high": None if step is None else step.high,
        "efficiency": None if row.efficiency is None else row.efficiency.value,
        "last_efficiency_throughput": row.last_efficiency,
        "withheld_throughput": row.withheld,
        "reason": found.reason,
    }
