"""`dpbench project`: one table, what refused rows lack, and what is assumed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from dpbench.analysis.estimate import BAND_CONFIDENCE, Estimate
from dpbench.analysis.formatting import percent, percentage, plus_minus, time_text
from dpbench.analysis.metrics import COMPARED_METRICS
from dpbench.analysis.projection.curve import ProjectedPoint, ScalingCurve
from dpbench.analysis.projection.law import ACROSS_NODES, WITHIN_NODE
from dpbench.messages import one_line
from dpbench.report.answer import Answer
from dpbench.report.table import MISSING, Column, Table, or_missing

INTERVALS_NOTE = (
    "measured: 95 % confidence interval over repetitions; predicted: "
    f"{percent(BAND_CONFIDENCE)} band"
)


def projection_answer(
    curves: Sequence[ScalingCurve],
    *,
    network: str | None,
    notes: Sequence[str] = (),
    verbose: bool = False,
) -> Answer:
    """A row for each curve and group size; as data, every number with its unit and interval.

    `network` is the name of the one that steps are simulated on; None for a law.
    """
    points = [point for curve in curves for point in curve.points]
    references = dict.fromkeys(curve.efficiency_reference for curve in curves)
    lines = [
        *_refusals(points),
        *notes,
        INTERVALS_NOTE,
        *_track_record(points),
        f"efficiency is speed per replica ÷ that of {' or '.join(references)}; 100 % is linear "
        "scaling",
        *(_assumptions(curves) if verbose else ["--verbose lists the assumptions"]),
    ]
    title = "Predicted by a scaling law from the measured group sizes"
    if network is not None:
        title = f"Simulated on {network}"
    return Answer(
        paragraphs=(title, _projection_table(curves), lines),
        data={
            "series": [_plain_curve(curve, network) for curve in curves],
            "interval": f"{INTERVALS_NOTE}; {' '.join(_track_record(points))}",
            "notes": list(notes),
        },
    )


def _plain_curve(curve: ScalingCurve, network: str | None) -> dict[str, Any]:
    row = curve.rows[-1]  # the first one may be `single`
    return {
        "label": curve.label,
        "implementation": row.implementation,
        "backend": row.backend or None,
        "batch_size": row.batch_size,
        "item": row.item,
        "reference": curve.efficiency_reference,
        "network": network,
        "rows": [*map(asdict, curve.points)],
        "assumptions": list(curve.assumptions),
    }


def _projection_table(curves: Sequence[ScalingCurve]) -> Table:
    """Columns without a value are left out."""
    items = {curve.rows[0].item for curve in curves}
    metric = COMPARED_METRICS["images_per_second"].counting(map(one_line, items))
    shown = [
        (curve.label, point)
        for curve in curves
        for point in curve.points
        if point.origin != "refused"
    ]
    points = [point for _, point in shown]

    def with_unit(estimate: Estimate) -> str:
        unit = f" {estimate.unit}" if len(items) > 1 else ""
        return f"{plus_minus(estimate)}{unit}"

    steps = [or_missing(point.step_seconds, time_text) for point in points]
    columns = (
        Column("Series", [label for label, _ in shown], is_text=True),
        Column("Replicas", [f"{point.group_size:,}" for point in points]),
        Column("Step", steps, importance=1),
        Column(metric.header, [or_missing(point.throughput, with_unit) for point in points]),
        Column("Efficiency", [or_missing(point.efficiency, percentage) for point in points]),
        Column("Origin", [point.origin for point in points], is_text=True),
    )
    return Table(groups=1, columns=tuple(c for c in columns if {*c.cells} - {"", MISSING}))


def _refusals(points: Sequence[ProjectedPoint]) -> Iterable[str]:
    """Each reason once, with the group sizes that it refuses."""
    for reason in dict.fromkeys(point.reason for point in points if point.reason):
        same = [point.group_size for point in points if point.reason == reason]
        sizes = dict.fromkeys(f"{size:,}" for size in same)
        yield f"no prediction for {', '.join(sizes)} replicas: {reason}"


def _track_record(points: Sequence[ProjectedPoint]) -> Iterable[str]:
    """How often such bands held on published series, for each origin that is shown."""
    origins = {point.origin for point in points}
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


def _assumptions(curves: Sequence[ScalingCurve]) -> Iterable[str]:
    """Each sentence once, with the curves that it is about unless it is about all."""
    lines = dict.fromkeys(line for curve in curves for line in curve.assumptions)
    for line in lines:
        labels = [curve.label for curve in curves if line in curve.assumptions]
        whose = "" if len(labels) == len(curves) else f" ({'; '.join(labels)})"
        yield f"assumed: {line}{whose}"
    if not lines:
        yield (
            "assumed: additional replicas have the same hardware as the measured ones, and links "
            "that are at least as fast"
        )
