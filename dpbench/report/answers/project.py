"""`dpbench project`: one table, what refused rows lack, and what is assumed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict

from dpbench import units
from dpbench.analysis.estimate import BAND_CONFIDENCE, Estimate
from dpbench.analysis.projection.law import ACROSS_NODES, WITHIN_NODE
from dpbench.analysis.projection.series import Projection
from dpbench.messages import one_line
from dpbench.report.answer import Answer
from dpbench.report.formatting import or_missing, percentage, plus_minus, time_text
from dpbench.report.table import MISSING, Table, column, text_column

MORE = "--verbose lists the assumptions"
BY_LAW = "Predicted by a scaling law from the measured group sizes"
SEVERAL_ITEMS = "items"
INTERVALS = (
    "measured: 95 % confidence interval over repetitions; predicted: "
    f"{units.percent(BAND_CONFIDENCE)} band"
)


def projection_answer(
    projections: Sequence[Projection], *, notes: Sequence[str] = (), verbose: bool = False
) -> Answer:
    """A row for each series and group size; as data, every number with its unit and interval."""
    references = " or ".join(
        dict.fromkeys(projection.series.reference for projection in projections)
    )
    lines = [
        *_refusals(projections),
        *notes,
        INTERVALS,
        *_track_record(projections),
        f"efficiency is speed per replica ÷ that of {references}; 100 % is linear scaling",
        *(_assumptions(projections) if verbose else [MORE]),
    ]
    networks = dict.fromkeys(
        projection.network for projection in projections if projection.network is not None
    )
    title = f"Simulated on {', '.join(networks)}" if networks else BY_LAW
    return Answer(
        paragraphs=(title, _table(projections), lines),
        data={
            "series": [
                {
                    "label": projection.series.label,
                    "implementation": projection.series.rows[0].implementation,
                    "implementation_label": projection.series.rows[0].implementation_label,
                    "backend": projection.series.rows[0].backend,
                    "batch_size": projection.series.rows[0].batch_size,
                    "item": projection.series.rows[0].item,
                    "reference": projection.series.reference,
                    "network": projection.network,
                    "rows": [asdict(row) for row in projection.points],
                    "assumptions": list(projection.assumptions),
                }
                for projection in projections
            ],
            "interval": f"{INTERVALS}; {' '.join(_track_record(projections))}",
            "notes": list(notes),
        },
    )


def _table(projections: Sequence[Projection]) -> Table:
    """Columns without a value are left out."""
    items = {projection.series.rows[0].item for projection in projections}
    item = items.pop() if len(items) == 1 else SEVERAL_ITEMS
    rows = [
        (projection, row)
        for projection in projections
        for row in projection.points
        if row.kind != "refused"
    ]

    def speed(estimate: Estimate) -> str:
        unit = f" {estimate.unit}" if item == SEVERAL_ITEMS else ""
        return f"{plus_minus(estimate, plain_decimals=1)}{unit}"

    columns = (
        text_column("Series", [projection.series.label for projection, _ in rows], folds=True),
        column("Replicas", [f"{row.group_size:,}" for _, row in rows]),
        column("Step", [or_missing(row.step_seconds, time_text) for _, row in rows], leaves=1),
        column(
            one_line(f"{item.capitalize()}/s"),
            [or_missing(row.throughput, speed) for _, row in rows],
        ),
        column("Efficiency", [percentage(row.efficiency) for _, row in rows]),
        text_column("Kind", [row.kind for _, row in rows]),
    )
    return Table(
        groups=1, columns=tuple(column for column in columns if {*column.cells} - {"", MISSING})
    )


def _refusals(projections: Sequence[Projection]) -> Iterable[str]:
    """Each reason once, with the group sizes that it refuses."""
    reasons: dict[str, dict[int, None]] = {}
    for projection in projections:
        for row in projection.points:
            if row.reason is not None:
                reasons.setdefault(row.reason, {})[row.group_size] = None
    for reason, sizes in reasons.items():
        yield f"no prediction for {', '.join(f'{n:,}' for n in sizes)} replicas: {reason}"


def _track_record(projections: Sequence[Projection]) -> Iterable[str]:
    """How often such bands held on published series, for each kind of prediction shown."""
    kinds = {point.kind for projection in projections for point in projection.points}
    if "extrapolated" in kinds:
        yield (
            f"on published series within one node, {WITHIN_NODE.inside} of "
            f"{WITHIN_NODE.predictions} predictions of this law lay within their band"
        )
    if "next node" in kinds:
        yield (
            "next node: the prediction includes the slowdown that published series show across a "
            f"node boundary; {ACROSS_NODES.inside} of {ACROSS_NODES.predictions} such predictions "
            "lay within their band. --topology simulates a network instead"
        )


def _assumptions(projections: Sequence[Projection]) -> Iterable[str]:
    """Each sentence once, with the series that it is about unless it is about all."""
    concerned: dict[str, list[str]] = {}
    for projection in projections:
        for line in projection.assumptions:
            concerned.setdefault(line, []).append(projection.series.label)
    for line, labels in concerned.items():
        whose = "" if len(labels) == len(projections) else f" ({'; '.join(labels)})"
        yield f"assumed: {line}{whose}"
    if not concerned:
        yield (
            "assumed: additional replicas have the same hardware as the measured ones, and links "
            "that are at least as fast"
        )
