"""Text and JSON of `dpbench project`: one table, what refused rows lack, and what is assumed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dpbench import units
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.projection.law import published_error
from dpbench.analysis.projection.row import CONFIDENCE, Kind, ProjectedRow, Projection
from dpbench.report.answer import Answer, bullets, plain_estimate
from dpbench.report.numbers import or_missing, percentage, plus_minus, time_text
from dpbench.report.progress.terminal import table_width
from dpbench.report.table import MISSING, Table, text_table
from dpbench.report.terminal import fitted, folded

LEAVES_FIRST = "Step"
"""The column that leaves where the table is too wide for a terminal."""
MORE = "--verbose lists the assumptions"
BY_LAW = "Predicted by a scaling law fitted to the measured group sizes"
SEVERAL_ITEMS = "items"
INTERVALS = (
    "measured: 95 % confidence interval over repetitions; predicted: "
    f"{units.fixed_percent(CONFIDENCE)} band"
)
MEANINGS: dict[Kind, str] = {
    "measured": "measured at this group size",
    "interpolated": "between measured group sizes",
    "extrapolated": "beyond the largest measured group size",
    "projected": "simulated on a network that was described, not measured",
}


def answer(
    projections: Sequence[Projection], *, notes: Sequence[str] = (), verbose: bool = False
) -> Answer:
    """A row for each series and group size; as data, every number with its unit and interval."""
    table, left_out = fitted(_table(projections), [LEAVES_FIRST])
    lines = [*_refusals(projections), *notes, *_reading(projections, verbose=verbose)]
    lines += _assumptions(projections) if verbose else [MORE]
    lines += [
        f"left out to fit {table_width()} columns: {', '.join(left_out)} (see --json)"
    ] * bool(left_out)
    networks = dict.fromkeys(one.network for one in projections if one.network is not None)
    title = f"Simulated on {', '.join(networks)}" if networks else BY_LAW
    return Answer(
        paragraphs=(title, folded(table, ["Series"]), bullets(lines)),
        data={
            "series": [
                {
                    "series": one.label,
                    "implementation": one.implementation,
                    "backend": one.backend,
                    "batch_size": one.batch_size,
                    "network": one.network,
                    "rows": [_plain(row) for row in one.rows],
                    "assumptions": list(one.assumptions),
                }
                for one in projections
            ],
            "interval": f"{INTERVALS}; {_band()}",
            "notes": list(notes),
        },
    )


def item_of(projections: Sequence[Projection]) -> str:
    """What their throughputs count: "images"; "items" for several things."""
    counted = {one.item for one in projections}
    return counted.pop() if len(counted) == 1 else SEVERAL_ITEMS


def _table(projections: Sequence[Projection]) -> Table:
    """Columns without a value are left out, and so is the series of the row above."""
    item = item_of(projections)

    def speed(estimate: Estimate) -> str:
        unit = f" {estimate.unit}" if item == SEVERAL_ITEMS else ""
        return f"{plus_minus(estimate, plain_decimals=1)}{unit}"

    columns: dict[str, Callable[[ProjectedRow], str]] = {
        "Replicas": lambda row: f"{row.group_size:,}",
        "Step": lambda row: or_missing(row.step_seconds, time_text),
        f"{item.capitalize()}/s" if item else "Speedup": lambda row: or_missing(
            row.throughput, speed
        ),
        "Efficiency": lambda row: percentage(row.efficiency),
        "Kind": lambda row: row.kind,
    }
    lines = [
        [one.label if row is shown[0] else "", *(cell(row) for cell in columns.values())]
        for one in projections
        if (shown := [row for row in one.rows if row.kind != "refused"])
        for row in shown
    ]
    headers = ("Series", *columns)
    table = text_table(headers, lines, words=("Series", "Kind"))
    return table.without(
        [name for place, name in enumerate(headers) if not {*table.texts(place)} - {"", MISSING}]
    )


def _refusals(projections: Sequence[Projection]) -> Iterable[str]:
    """Each reason once, with the group sizes that it refuses."""
    reasons: dict[str, dict[int, None]] = {}
    for one in projections:
        for row in one.rows:
            if row.reason is not None:
                reasons.setdefault(row.reason, {})[row.group_size] = None
    for reason, sizes in reasons.items():
        yield f"no prediction for {', '.join(f'{n:,}' for n in sizes)} replicas: {reason}"


def _band() -> str:
    """What widens the bands, in numbers."""
    two, more = (
        f"{math.exp(error.low):.2f} to {math.exp(error.high):.2f}"
        for error in (published_error(2), published_error(3))
    )
    return (
        "bands include the noise of the measurements and the errors of such predictions on "
        "published tables. There, at twice the largest measured group size, a step took "
        f"{two} times the predicted time (from two group sizes) or {more} times (from three or "
        "more). Each further doubling widens the band"
    )


def _reading(projections: Sequence[Projection], *, verbose: bool) -> Iterable[str]:
    """How to read the numbers; with `verbose`, also what the bands and kinds mean."""
    yield INTERVALS
    references = " or ".join(dict.fromkeys(one.reference for one in projections))
    yield f"efficiency is speed per replica ÷ that of {references}; 100 % is linear scaling"
    if not verbose:
        return
    yield _band()
    kinds = {row.kind for one in projections for row in one.rows}
    yield "; ".join(f"{kind}: {words}" for kind, words in MEANINGS.items() if kind in kinds)


def _assumptions(projections: Sequence[Projection]) -> Iterable[str]:
    """Each sentence once, with the series that it is about unless it is about all."""
    concerned: dict[str, list[str]] = {}
    for one in projections:
        for line in one.assumptions:
            concerned.setdefault(line, []).append(one.label)
    for line, labels in concerned.items():
        whose = "" if len(labels) == len(projections) else f" ({'; '.join(labels)})"
        yield f"assumed: {line}{whose}"
    if not concerned:
        yield (
            "assumed: additional replicas have the same hardware as the measured ones, and links "
            "that are at least as fast"
        )


def _plain(row: ProjectedRow) -> dict[str, Any]:
    return {
        "group_size": row.group_size,
        "kind": row.kind,
        "reason": row.reason,
        "step_seconds": plain_estimate(row.step_seconds),
        "items_per_second": plain_estimate(row.throughput),
        "efficiency": plain_estimate(row.efficiency),
    }
