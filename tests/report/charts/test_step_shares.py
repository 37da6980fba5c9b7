"""Stacked phases: lengths are the shares of the analysis, and what is not measured is not drawn."""

from __future__ import annotations

from typing import Any

import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from dpbench.records.trial import Phases, TrialRecord
from dpbench.report.charts.source import NothingToDraw
from dpbench.report.charts.step_shares import COLOURS, step_shares
from tests.analysis.builders import PASSED, rank, record, trial, weak_sweep, window
from tests.report.charts.sources import caption, source


def run(*, bare: float | None = 30e-3, backward: float = 50e-3, **changes: Any) -> TrialRecord:
    """10 + 20 + backward + 20 ms; `bare` is backward without synchronization."""
    spec = trial(**{"group_size": 2, **changes})

    def phases(backward: float) -> Phases:
        return Phases(
            data_seconds=(0.01,),
            forward_seconds=(0.02,),
            backward_seconds=(backward,),
            optimizer_seconds=(0.02,),
        )

    ranks = [
        rank(
            number,
            window([0.09] * 4, 64),
            phases=phases(backward),
            phases_without_sync=None if bare is None else phases(bare),
        )
        for number in range(spec.process_count)
    ]
    return record(spec, ranks, verification=PASSED)


def bars(figure: Figure) -> list[tuple[float, float]]:
    """Left end and width of each segment, in percent."""
    (axes,) = figure.axes
    found = [bar for bar in axes.patches if isinstance(bar, Rectangle)]
    return [(round(bar.get_x(), 6), round(bar.get_width(), 6)) for bar in found]


def words(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def test_segments_lie_end_to_end_in_the_order_of_a_step() -> None:
    figure = step_shares(source([run()]))
    assert bars(figure) == [(0, 10), (10, 20), (30, 30), (60, 20), (80, 20)]
    colours = [bar.get_facecolor() for bar in figure.axes[0].patches]
    assert len(set(colours)) == len(COLOURS)
    assert figure.axes[0].get_xlim() == (0, 100)


def test_numbers_have_their_interval_where_there_is_room() -> None:
    # Communication is 20 and 30 ms of 100 and 110: 0.2364, and 12.7 × 0.0364 (t) to either side.
    figure = step_shares(source([run(), run(backward=60e-3, repetition=1)]))
    assert words(figure).count("24 ± 46 %") == 2  # in the bar, and beside it
    assert "10 %" not in words(figure)  # data: no room
    assert "105 ± 64 ms" in words(figure)
    assert "95 % interval over 2 repetitions of 1 step a rank" in caption(figure)


def test_communication_that_noise_makes_negative_lies_left_of_zero() -> None:
    figure = step_shares(source([run(bare=70e-3)]))
    # 10 + 20 + 70 - 20 + 20 of 100 ms.
    assert bars(figure) == [(0, 10), (10, 20), (30, 70), (0, -20), (100, 20)]
    assert figure.axes[0].get_xlim() == pytest.approx((-20, 120))
    assert "communication that noise makes negative" in caption(figure)


def test_backward_that_holds_communication_looks_different_and_is_said() -> None:
    figure = step_shares(source([run(bare=None)]))
    hatched = [bar for bar in figure.axes[0].patches if bar.get_hatch()]
    assert len(hatched) == 1
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert legend.get_texts()[-1].get_text() == "backward with communication"


def test_of_too_many_configurations_the_largest_groups_are_drawn() -> None:
    records = [run(group_size=size, batch_size=batch) for size in (1, 2) for batch in range(1, 21)]
    figure = step_shares(source(records))
    assert len(bars(figure)) == 20 * len(COLOURS)
    assert "2 replicas, batch size 20" in words(figure)
    assert not any(text.startswith("1 replica,") for text in words(figure))
    assert "20 of 40 configurations" in caption(figure)


def test_without_phases_there_is_nothing_to_draw() -> None:
    with pytest.raises(NothingToDraw, match="--phases"):
        step_shares(source(weak_sweep()))
