"""Training loss over seconds: which configuration learns fastest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpbench import units
from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.losses.loss_curve import (
    BLOCKS,
    TRAILING_BLOCKS,
    LossBand,
    LossCurve,
    loss_band,
    loss_curve,
)
from dpbench.messages import one_line
from dpbench.report.charts.bars import Measured, measured_rows
from dpbench.report.charts.curves import MOST_SERIES, chosen_sizes, label_lines
from dpbench.report.charts.kinds import CHARTS
from dpbench.report.charts.source import ChartSource, NothingToDraw
from dpbench.report.charts.style import (
    BAND_OPACITY,
    SeriesName,
    SeriesStyle,
    finish,
    panels,
    scaled_axis,
    series_styles,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Line:
    row: ConfigurationSummary
    batch_size: int
    band: LossBand

    @property
    def series(self) -> SeriesName:
        return self.row.implementation, self.row.backend


def loss(source: ChartSource) -> Figure:
    """One panel per batch size; each implementation at its largest group size, all repetitions.

    Curves of faster implementations end further left.
    """
    lines, left_out = _lines(_largest(measured_rows(source)))
    names = list(dict.fromkeys(line.series for line in lines))
    styles = series_styles(names[:MOST_SERIES])
    drawn = [line for line in lines if line.series in styles]
    shown = chosen_sizes([line.batch_size for line in drawn])
    figure, axes = panels(len(shown), share_y=True)
    ends = [float(line.band.at[-1]) for line in drawn if line.batch_size in shown]
    for axis, batch_size in zip(axes, shown, strict=True):
        _panel(axis, [line for line in drawn if line.batch_size == batch_size], styles)
        axis.set_title(f"batch size {batch_size}")
        scaled_axis(axis.xaxis, ends, "s", "timed window")
    axes[0].set_ylabel("training loss (mean over ranks)")
    remarks = [*_remarks(drawn, shown), *left_out]
    if len(names) > MOST_SERIES:
        remarks.append(f"first {MOST_SERIES} of {len(names)} series")
    return finish(figure, title=CHARTS["loss"].title, caption=source.caption([], remarks))


def _largest(found: Sequence[Measured]) -> list[Measured]:
    """The largest group of each series and batch size: rows come in order of group size."""
    return list({(one.row.series, one.row.batch_size): one for one in found}.values())


def _lines(found: Sequence[Measured]) -> tuple[list[_Line], list[str]]:
    """Returns the curves, and which are left out; raises NothingToDraw if all are."""
    lines, apart = [], 0
    recorded = [(one, curves) for one in found if (curves := _curves(one))]
    for one, curves in recorded:
        band = loss_band(curves)
        apart += band is None
        if band is not None:
            lines.append(_Line(row=one.row, batch_size=one.trial.batch_size, band=band))
    if not recorded:
        raise NothingToDraw("no completed trial recorded two losses or more, all of them finite")
    if not lines:
        raise NothingToDraw("of no configuration have the repetitions a stretch in common")
    reasons = {
        "without finite losses": len(found) - len(recorded),
        "whose repetitions have no stretch in common": apart,
    }
    counted = [(units.counted(n, "configuration"), why) for why, n in reasons.items() if n]
    return lines, [f"{configurations} {why} left out" for configurations, why in counted]


def _curves(one: Measured) -> list[LossCurve]:
    """Curves of the configuration's repetitions; none if one cannot be drawn as a line."""
    curves = [curve for record in one.records if (curve := loss_curve(record)) is not None]
    return curves if all(len(curve.losses) > 1 for curve in curves) else []


def _panel(axes: Axes, lines: Sequence[_Line], styles: dict[SeriesName, SeriesStyle]) -> None:
    names = []
    for line in lines:
        style, band = styles[line.series], line.band
        axes.fill_between(
            band.at, band.low, band.high, color=style.color, alpha=BAND_OPACITY, linewidth=0
        )
        axes.plot(band.at, band.median, color=style.color, linestyle=style.linestyle)
        # A marker where the window ends: along seconds, faster ones end further left.
        end = (float(band.at[-1]), float(band.median[-1]))
        axes.plot(*end, color=style.color, marker=style.marker)
        names.append((*end, f"{one_line(line.row.series)} ×{line.row.group_size}", style.color))
    label_lines(axes, names)


def _remarks(lines: Sequence[_Line], shown: Sequence[int]) -> list[str]:
    repetitions = [line.band.repetitions for line in lines]
    if max(repetitions) > 1:
        remarks = [f"line: median over {units.span(repetitions, 'repetition')}; band: their range"]
    else:
        remarks = ["one repetition (n = 1), so no band"]
    remarks += [
        f"medians of {100 // BLOCKS} % of the steps, trailing mean of {TRAILING_BLOCKS}",
        "largest group size of each implementation",
    ]
    measured_sizes = {line.batch_size for line in lines}
    if len(shown) < len(measured_sizes):
        listed = ", ".join(map(str, shown))
        remarks.append(f"batch sizes {listed} of {len(measured_sizes)} measured")
    return remarks
