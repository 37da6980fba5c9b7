"""The chart of the loss shows the curves of the analysis, with all repetitions in the band."""

from __future__ import annotations

import math

import numpy as np
import pytest
from matplotlib.axes import Axes

from dpbench.analysis.losses.loss_curve import loss_curve
from dpbench.records.trial import TrialRecord
from dpbench.report.charts.loss import loss
from dpbench.report.charts.source import NothingToDraw
from tests.analysis.builders import PASSED, rank, record, trial, window
from tests.report.charts.sources import caption, source


def run(
    losses: list[float], *, seconds: float = 0.1, group_size: int = 1, **changes: object
) -> TrialRecord:
    """Equal steps of so many seconds, 32 samples a rank."""
    spec = trial(group_size=group_size, **changes)
    timed = window([seconds] * len(losses), 32 * len(losses), losses)
    return record(spec, [rank(n, timed) for n in range(group_size)], verification=PASSED)


def repetitions() -> list[TrialRecord]:
    return [
        run([4.0, 3.0, 2.0, 1.0]),
        run([5.0, 4.0, 3.0, 2.0], repetition=1),
        run([4.5, 4.5, 4.5, 4.5], repetition=2),
    ]


def curve(axes: Axes) -> tuple[list[float], list[float]]:
    line = axes.lines[0]
    return np.asarray(line.get_xdata()).tolist(), np.asarray(line.get_ydata()).tolist()


def test_the_line_is_the_median_over_repetitions_and_the_band_their_range() -> None:
    figure = loss(source(repetitions()))
    seconds, losses = curve(figure.axes[0])
    assert seconds == pytest.approx([0.1, 0.2, 0.3, 0.4])
    # Trailing means: 4, 3.5, 3, 2.5; 5, 4.5, 4, 3.5; 4.5 throughout.
    assert losses == [4.5, 4.5, 4, 3.5]
    (band,) = figure.axes[0].collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (2.5, 5.0)
    assert "median over 3 repetitions; band: their range" in caption(figure)


def test_seconds_go_as_far_as_all_repetitions_do() -> None:
    slow = run([4.0, 3.0, 2.0, 1.0])
    fast = run([5.0, 4.0, 3.0, 2.0], repetition=1, seconds=0.05)
    figure = loss(source([slow, fast]))
    seconds, losses = curve(figure.axes[0])
    assert (seconds[0], seconds[-1]) == pytest.approx((0.1, 0.2))
    # At 0.2 s one has 3.5 of its curve, the other, at its end, 3.5.
    assert losses[-1] == pytest.approx(3.5)
    assert figure.axes[0].get_xlabel() == "timed window (ms)"


def test_one_repetition_is_the_curve_of_the_analysis() -> None:
    only = run([math.exp(-step / 30) for step in range(250)])
    analysed = loss_curve(only)
    assert analysed is not None
    figure = loss(source([only]))
    seconds, losses = curve(figure.axes[0])
    assert "one repetition (n = 1)" in caption(figure)
    assert losses == pytest.approx(analysed.losses.tolist())
    assert seconds == pytest.approx(analysed.seconds.tolist())


def test_repetitions_without_a_stretch_in_common_are_left_out_and_said() -> None:
    """One ends before the other has its first loss: between them there is nothing to show."""
    apart = [run([2.0, 1.0]), run([2.0, 1.0], repetition=1, seconds=0.3)]
    figure = loss(source([*apart, run([2.0, 1.0], batch_size=64)]))
    assert [axes.get_title() for axes in figure.axes] == ["batch size 64"]
    said = "1 configuration whose repetitions have no stretch in common left out"
    assert said in caption(figure)
    with pytest.raises(NothingToDraw, match="have the repetitions a stretch in common"):
        loss(source(apart))


def test_each_series_is_drawn_at_its_largest_group_and_named_at_its_end() -> None:
    records = [run([2.0, 1.0]), run([2.0, 1.0], group_size=2), run([3.0, 2.0], batch_size=64)]
    figure = loss(source(records))
    assert [axes.get_title() for axes in figure.axes] == ["batch size 32", "batch size 64"]
    names = [[text.get_text() for text in axes.texts] for axes in figure.axes]
    assert names == [["ddp/gloo ×2"], ["ddp/gloo ×1"]]


def test_losses_that_are_missing_or_not_finite_are_left_out_and_said() -> None:
    bare = record(trial("dp", "threads"), [rank(0, window([0.1, 0.1], 64))], verification=PASSED)
    figure = loss(source([run([2.0, 1.0]), bare]))
    assert "1 configuration without finite losses left out" in caption(figure)
    with pytest.raises(NothingToDraw, match="two losses or more"):
        loss(source([bare, run([1.0], batch_size=64)]))
