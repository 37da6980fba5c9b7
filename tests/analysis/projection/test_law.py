"""Points beyond measured group sizes: their numbers, bands and refusals, and the law by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from dpbench.analysis.estimate import Estimate, t_quantile
from dpbench.analysis.projection.curve import NEEDS_THROUGHPUTS, ProjectedPoint, scaling_curves
from dpbench.analysis.projection.law import ACROSS_NODES, continued, crosses, project_by_law
from dpbench.analysis.rows import published_rows, summarize
from dpbench.errors import UsageError
from dpbench.records.trial import Status, TrialRecord
from dpbench.specs import Configuration
from tests.analysis.builders import record, run, runs, trial
from tests.analysis.projection.sweeps import PUBLISHED, curve, ddp_curves, swept


def noisy_runs(spec: Configuration, speed: float, noise: float) -> list[TrialRecord]:
    """Two runs of which the logarithm of the mean speed may be off by `noise`."""
    apart = noise / t_quantile(1)
    return runs(spec, [speed * math.exp(-apart), speed * math.exp(apart)])


def numbers(point: ProjectedPoint) -> tuple[Estimate, Estimate, Estimate]:
    """Step, throughput and efficiency."""
    assert point.step_seconds is not None
    assert point.throughput is not None
    assert point.efficiency is not None
    return point.step_seconds, point.throughput, point.efficiency


def test_a_point_has_step_throughput_and_efficiency() -> None:
    [row] = project_by_law(curve(lambda n: 0.1 * 1.2 ** math.log2(n), (1, 2)), [4]).points
    step = 0.1 * 1.2 ** (4 / 3)
    assert row.origin == "extrapolated"
    found = numbers(row)
    assert [one.value for one in found] == pytest.approx([step, 4 / step, 0.1 / step])
    assert found[2].confidence == 0.9


@pytest.mark.parametrize(
    ("first", "noise", "expected"),
    [
        (noisy_runs(trial(), 10, 0.3), 0.3, 10 / 10),
        ([*noisy_runs(trial("single", "none"), 12.5, 0.2), run(trial(), 10)], 0.2, 10 / 12.5),
    ],
)
def test_an_efficiency_has_the_noise_of_what_it_is_against(
    first: Sequence[TrialRecord], noise: float, expected: float
) -> None:
    [line] = ddp_curves([*first, *(run(trial(group_size=n), 10 * n) for n in (2, 4))])
    [row] = project_by_law(line, [8]).points
    _, throughput, efficiency = numbers(row)
    assert efficiency.value == pytest.approx(expected)
    speed, share = (math.log(one.ends[1] / one.value) for one in (throughput, efficiency))
    assert share == pytest.approx(math.hypot(speed, noise))


def test_measured_points_have_the_efficiency_of_the_table() -> None:
    records = swept()
    (row,) = (r for r in summarize(records) if r.series == "ddp/gloo" and r.group_size == 2)
    [line] = ddp_curves(records)
    one, two = project_by_law(line, [1, 2]).points
    assert two.efficiency == row.efficiency
    assert numbers(one)[2].value == pytest.approx(10 / 11)
    alone, _ = project_by_law(curve(lambda n: 0.1, (2, 4)), [2, 4]).points
    assert numbers(alone)[2].value == pytest.approx(1)


def test_a_second_node_is_predicted_slower_and_with_a_wider_band() -> None:
    line = curve(lambda n: 0.1, (1, 2, 4))
    [within] = project_by_law(line, [8], per_node=8).points
    [across] = project_by_law(line, [8], per_node=4).points
    assert (within.origin, across.origin) == ("extrapolated", "next node")
    near, far = numbers(within)[1], numbers(across)[1]
    assert math.log(near.value / far.value) == pytest.approx(0.1 * ACROSS_NODES.middle)
    width, wider = (math.log(one.ends[1] / one.ends[0]) for one in (near, far))
    assert wider > 1.5 * width


def test_what_cannot_be_projected_is_refused_with_the_reason() -> None:
    with pytest.raises(UsageError, match="at least two group sizes, got 2; measure more"):
        project_by_law(curve(lambda n: 0.1, (2,)), None)
    below, between, beyond = project_by_law(curve(lambda n: 0.1, (2, 4)), [1, 3, 17]).points
    assert {row.origin for row in (below, between, beyond)} == {"refused"}
    assert below.reason == between.reason
    assert "below the largest measured group size (4); measure it" in (below.reason or "")
    assert "more than 4 × the largest measured group size (4)" in (beyond.reason or "")
    speedups = published_rows(PUBLISHED / "tabtune_typical_speedups.csv")
    assert scaling_curves(speedups, lambda row: True) == ([], [NEEDS_THROUGHPUTS])
    records = runs(trial("single", "none"), (100, 1000, 400))
    failed = summarize([*records, record(trial(group_size=2), status=Status.FAILED)])
    assert scaling_curves(failed, lambda row: True) == ([], ["no trial has a speed yet"])
    for name in ("ddp", "torch-ddp"):
        records += runs(trial(name, group_size=2), (900, 1000, 950))
    none, [note] = scaling_curves(summarize(records), lambda row: True)
    assert (none, note[:22]) == ([], "too noisy to project: ")
    assert note.count("single") == 1, "both curves rest on it"


RISE = math.log(1.2)


@pytest.mark.parametrize(
    ("sizes", "seconds", "n", "expected"),
    [
        # A third of the mean rise per doubling goes on, and half of that after it.
        ((1, 2), [1, 1.2], 4, RISE * (1 + 1 / 3)),
        ((1, 2), [1, 1.2], 8, RISE * (1 + 1 / 3 + 1 / 6)),
        # Twice 1.1 on the way, although all of it came with the first doubling.
        ((1, 2, 4), [1, 1.21, 1.21], 8, math.log(1.21) + math.log(1.1) / 3),
        # A step that became shorter is not expected to become still shorter.
        ((1, 2), [1, 0.9], 8, math.log(0.9)),
    ],
)
def test_beyond_the_data_the_mean_rise_goes_on_damped(
    sizes: tuple[int, ...], seconds: list[float], n: int, expected: float
) -> None:
    assert continued(sizes, seconds, n)[0] == pytest.approx(expected)


def test_only_a_group_that_fits_no_longer_into_the_node_crosses_its_boundary() -> None:
    assert crosses((1, 2, 8), 16, 8)
    assert not crosses((1, 2, 4), 8, 8)
    assert not crosses((8, 16), 32, 8), "a group of two nodes was measured"
    assert not crosses((1, 2, 8), 16, None), "not known"
