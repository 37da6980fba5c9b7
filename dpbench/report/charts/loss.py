"""Training loss over seconds: which configuration learns fastest."""

from __future__ import annotations

from dpbench.analysis.analyze import Analysis
from dpbench.analysis.losses import loss_curve
from dpbench.messages import one_line
from dpbench.report.charts.kinds import NothingToDraw
from dpbench.report.charts.style import (
    MAX_SERIES,
    Drawn,
    first_of,
    panels,
    series_styles,
    time_axis,
)


def loss(analysis: Analysis) -> Drawn:
    """One panel per batch size; each implementation at its largest group size, in the repetition
    of typical length, as repetitions with one seed follow the same curve."""
    measured = [row for row in analysis.rows if row.records]
    largest = {(row.series, row.batch_size): row for row in measured}.values()
    lines = []
    for row in largest:
        curves = [curve for record in row.records if (curve := loss_curve(record)) is not None]
        if curves and all(len(losses) > 1 for _, losses in curves):
            by_length = sorted(curves, key=lambda curve: float(curve[0][-1]))
            lines.append((row, by_length[(len(curves) - 1) // 2]))
    if not lines:
        raise NothingToDraw("no completed trial recorded two losses or more, all of them finite")
    styles = series_styles(row for row, _ in lines)
    drawn = [*styles][:MAX_SERIES]
    batches = sorted({row.batch_size or 0 for row, _ in lines})
    figure, shown, left_out = panels(batches, "batch sizes")
    for axis, batch_size in shown:
        for row, (seconds, losses) in lines:
            if row.batch_size == batch_size and row.series in drawn:
                # The marker shows where the window ends: faster configurations end further left.
                axis.plot(
                    seconds,
                    losses,
                    label=f"{one_line(row.series)} ×{row.group_size}",
                    markevery=[len(seconds) - 1],
                    **styles[row.series],
                )
        axis.set_title(f"batch size {batch_size:,}")
        axis.set_ylabel("training loss (mean over ranks)")
        time_axis(axis, "timed window")
    remarks = ["smoothed loss of the repetition of median length"]
    if len(lines) < len(largest):
        remarks.append(f"{len(lines)} of {len(largest)} configurations recorded finite losses")
    return Drawn(figure, [], [*remarks, *first_of(MAX_SERIES, len(styles), "series"), *left_out])
