"""Step times by rank: what is drawn are the steps of the analysis, late ones included."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

from dpbench.records.trial import TrialRecord
from dpbench.report.charts.source import NothingToDraw
from dpbench.report.charts.step_times import MOST_RANKS, step_times
from tests.analysis.builders import PASSED, rank, record, steps_of, trial, window
from tests.report.charts.sources import caption, source


def slow_rank(number: int, *, ranks: int = 2, repetition: int = 0) -> TrialRecord:
    """Steps of 20 ms; alone 10 ms, and 15 ms on one rank."""
    alone = [0.015 if place == number else 0.010 for place in range(ranks)]
    return steps_of("ddp", [0.020] * ranks, alone, repetition=repetition)


def beside(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts if text.get_text()]


def names(figure: Figure) -> list[str]:
    return [label.get_text() for label in figure.axes[0].get_yticklabels()]


def test_every_rank_has_a_row_and_the_slowest_is_named() -> None:
    figure = step_times(source([slow_rank(1), slow_rank(1, repetition=1)]))
    assert names(figure) == ["ddp/gloo   rank 0", "rank 1"]
    assert beside(figure) == ["slowest in 2 of 2"]
    assert figure.axes[0].texts[1].xy[1] == 1
    assert "all 8 steps of 2 repetitions" in caption(figure)


def test_ticks_stand_at_the_medians_with_and_without_synchronization() -> None:
    figure = step_times(source([slow_rank(1)]))
    ticks = [line.get_xdata()[0] for line in figure.axes[0].lines if line.get_linewidth() == 1]
    assert ticks == pytest.approx([0.02, 0.01, 0.02, 0.015])


def test_outliers_are_counted_and_drawn_and_those_far_away_are_said() -> None:
    steps = [0.010, 0.011] * 10 + [0.030, 0.500]  # late from 25.8 ms on
    figure = step_times(source([record(trial(), [rank(0, window(steps, 1))], verification=PASSED)]))
    assert beside(figure) == ["2 outliers · 1 beyond, up to 500 ms ▸"]
    (circles,) = [line for line in figure.axes[0].lines if line.get_marker() == "o"]
    assert np.asarray(circles.get_xdata()).tolist() == [0.030]
    assert figure.axes[0].get_xlim()[1] < 0.04


def test_of_many_ranks_the_slowest_is_among_those_that_are_drawn() -> None:
    figure = step_times(source([slow_rank(50, ranks=64)]))
    assert len(names(figure)) == MOST_RANKS
    assert names(figure)[-2:] == ["rank 6", "rank 50"]
    assert beside(figure) == ["slowest in 1 of 1"]
    assert "8 ranks of each at the most, the slowest among them" in caption(figure)


def test_many_configurations_have_fewer_ranks_each() -> None:
    implementations = ["ddp", "torch-ddp", "torch-ddp-static"]
    records = [
        steps_of(name, [0.02] * 8, [0.01] * 7 + [0.02], backend=backend)
        for name in implementations
        for backend in ("gloo", "nccl", "shm", "mpi", "ucc")
    ]
    figure = step_times(source(records))
    assert len(names(figure)) == 2 * 15
    assert names(figure)[:2] == ["ddp/gloo   rank 0", "rank 7"]


def test_one_step_is_no_distribution() -> None:
    one = record(trial(), [rank(0, window([0.01], 32))], verification=PASSED)
    with pytest.raises(NothingToDraw, match="two timed steps"):
        step_times(source([one]))


def test_many_cases_of_one_row_make_no_tower() -> None:
    """A row, its title and its axis take four of 32 rows, so there are eight panels."""
    records = [steps_of("single", [0.01], batch_size=batch) for batch in range(1, 41)]
    figure = step_times(source(records))
    assert len(figure.axes) == 8
    assert figure.get_figheight() < 9
    assert "8 of 40 configurations" in caption(figure)
