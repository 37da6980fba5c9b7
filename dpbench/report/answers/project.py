"""`dpbench project`: one table, what refused rows lack, and what is assumed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from dpbench.analysis.estimate import BAND_CONFIDENCE, Estimate
from dpbench.analysis.formatting import percent, percentage, plus_minus, time_text
from dpbench.analysis.metrics import TABLE_METRICS
from dpbench.analysis.projection.law import ACROSS_NODES, WITHIN_NODE
from dpbench.analysis.projection.series import ProjectedPoint, Projection
from dpbench.messages import one_line
from dpbench.report.answer import Answer
from dpbench.report.table import MISSING, Column, Table, or_missing

VERBOSE_HINT = "--verbose lists the assumptions"
LAW_TITLE = "Predicted by a scaling law from the measured group sizes"
INTERVALS_NOTE = (
    "measured: 95 % confidence interval over repetitions; predicted: "
    f"{percent(BAND_CONFIDENCE)} band"
)


def projection_answer(
    projections: Sequence[Projection], *, notes: Sequence[str] = (), verbose: bool = False
) -> Answer:
    """A row for each series and group size; as data, every number with its unit and interval."""
    references = dict.fromkeys(projection.series.speedup_reference for projection in projections)
    lines = [
        *_refusals(projections),
        *notes,
        INTERVALS_NOTE,
        *_track_record(projections),
        f"efficiency is speed per replica ÷ that of {' or '.join(references)}; 100 % is linear "
        "scaling",
        *(_assumptions(projections) if verbose else [VERBOSE_HINT]),
    ]
    networks = dict.fromkeys(filter(None, (projection.network for projection in projections)))
    title = f"Simulated on {', '.join(networks)}" if networks else LAW_TITLE
    return Answer(
        paragraphs=(title, _projection_table(projections), lines),
        data={
            "series": [*map(_plain_projection, projections)],
            "interval": f"{INTERVALS_NOTE}; {' '.join(_track_record(projections))}",
            "notes": list(notes),
        },
    )


def _plain_projection(projection: Projection) -> dict[str, Any]:
    row = projection.series.rows[-1]  # the first one may be `single`
    return {
        "label": projection.series.label,
        "implementation": row.implementation,
        "backend": row.backend or None,
        "batch_size": row.batch_size,
        "item": row.item,
        "reference": projection.series.speedup_reference,
        "network": projection.network,
        "rows": [*map(asdict, projection.points)],
        "assumptions": list(projection.assumptions),
    }


def _projection_table(projections: Sequence[Projection]) -> Table:
    """Columns without a value are left out."""
    items = {projection.series.rows[0].item for projection in projections}
    metric = TABLE_METRICS["images_per_second"].counting(map(one_line, items))
    labels = list[str]()
    points = list[ProjectedPoint]()
    for projection in projections:
        predicted = [point for point in projection.points if point.origin != "refused"]
        labels += [projection.series.label] * len(predicted)
        points += predicted

    def with_unit(estimate: Estimate) -> str:
        unit = f" {estimate.unit}" if len(items) > 1 else ""
        return f"{plus_minus(estimate)}{unit}"

    throughputs = [point.throughput for point in points]
    columns = (
        Column("Series", labels, is_text=True),
        Column("Replicas", [f"{point.group_size:,}" for point in points]),
        Column("Step", [or_missing(point.step_seconds, time_text) for point in points], priority=2),
        Column(metric.header, [or_missing(estimate, with_unit) for estimate in throughputs]),
        Column("Efficiency", [or_missing(point.efficiency, percentage) for point in points]),
        Column("Origin", [point.origin for point in points], is_text=True),
    )
    return Table(groups=1, columns=tuple(c for c in columns if {*c.cells} - {"", MISSING}))


def _refusals(projections: Sequence[Projection]) -> Iterable[str]:
    """Each reason once, with the group sizes that it refuses."""
    refused = [point for projection in projections for point in projection.points if point.reason]
    for reason in dict.fromkeys(point.reason for point in refused):
        same = [point.group_size for point in refused if point.reason == reason]
        sizes = dict.fromkeys(f"{size:,}" for size in same)
        yield f"no prediction for {', '.join(sizes)} replicas: {reason}"


def _track_record(projections: Sequence[Projection]) -> Iterable[str]:
    """How often such bands held on published series, for each origin that is shown."""
    origins = {point.origin for projection in projections for point in projection.points}
    if "extrapolated" in origins:
        yield (
            f"on published series within one node, {WITHIN_NODE.inside} of "
            f"{WITHIN_NODE.predictions} predictions of this law lay within their band"
        )
    if "next node" in origins:
        yield (
            "next node: the prediction includes the slowdown that published series show across a "
            f"node boundary; {ACROSS_NODES.inside} of {ACROSS_NODES.predictions} such predictions "
            "lay within their band. --topology simulates a network instead"
        )


def _assumptions(projections: Sequence[Projection]) -> Iterable[str]:
    """Each sentence once, with the series that it is about unless it is about all."""
    lines = dict.fromkeys(line for made in projections for line in made.assumptions)
    for line in lines:
        labels = [made.series.label for made in projections if line in made.assumptions]
        whose = "" if len(labels) == len(projections) else f" ({'; '.join(labels)})"
        yield f"assumed: {line}{whose}"
    if not lines:
        yield (
            "assumed: additional replicas have the same hardware as the measured ones, and links "
            "that are at least as fast"
        )
