"""Training loss over seconds: which configuration learns fastest."""

from __future__ import annotations

from matplotlib.figure import Figure

from dpbench import units
from dpbench.analysis.losses.loss_curve import loss_band, loss_curve
from dpbench.report.charts.rows import measured_rows
from dpbench.report.charts.source import ChartSource, NothingToDraw, first_of
from dpbench.report.charts.style import (
    BAND_OPACITY,
    MOST_PANELS,
    MOST_SERIES,
    finish,
    legend,
    panels,
    scaled_axis,
    series_styles,
)


def loss(source: ChartSource) -> Figure:
    """One panel per batch size; each implementation at its largest group size, all repetitions."""
    measured = [one for one in measured_rows(source) if one.records]
    largest = {(one.row.series, one.row.batch_size): one for one in measured}.values()
    lines = []
    for one in largest:
        curves = [curve for record in one.records if (curve := loss_curve(record)) is not None]
        if curves and all(len(curve.losses) > 1 for curve in curves):
            band = loss_band(curves)
            lines += [(one, band)] if band is not None else []
    if not lines:
        raise NothingToDraw("no completed trial recorded two losses or more, all of them finite")
    series = list(dict.fromkeys(one.series for one, _ in lines))
    styles = series_styles(series)
    batches = sorted({one.row.batch_size or 0 for one, _ in lines})
    figure, axes = panels(len(batches[:MOST_PANELS]), share_y=True)
    for axis, batch_size in zip(axes, batches, strict=False):
        for one, band in lines:
            if one.row.batch_size != batch_size or one.series not in series[:MOST_SERIES]:
                continue
            style = styles[one.series]
            axis.fill_between(
                band.at, band.low, band.high, color=style["color"], alpha=BAND_OPACITY, linewidth=0
            )
            # The marker shows where the window ends: faster configurations end further left.
            axis.plot(
                band.at,
                band.median,
                label=f"{one.name} ×{one.row.group_size}",
                markevery=[len(band.at) - 1],
                **style,
            )
        axis.set_title(f"batch size {batch_size:,}")
        axis.set_ylabel("training loss (mean over ranks)")
        scaled_axis(axis, "s", "timed window", which="x")
    legend(figure)
    repetitions = units.span([band.repetitions for _, band in lines], "repetition")
    remarks = [f"line: smoothed loss, median over {repetitions}; band: their range"]
    if len(lines) < len(largest):
        remarks.append(f"{len(lines)} of {len(largest)} configurations recorded finite losses")
    remarks += first_of(MOST_SERIES, len(series), "series")
    remarks += first_of(MOST_PANELS, len(batches), "batch sizes")
    return finish(figure, title=source.title("loss"), caption=source.caption([], remarks))
