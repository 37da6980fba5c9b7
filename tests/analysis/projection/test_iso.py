"""The smallest batch that keeps an efficiency, against numbers worked by hand."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

from dpbench.analysis.projection.iso import Family, affine_trace, families, iso_batches
from dpbench.analysis.projection.project import simulate_at
from dpbench.analysis.projection.series import Series, series_of
from dpbench.analysis.projection.step_model import Spread
from dpbench.analysis.summary import summarize
from dpbench.errors import UsageError
from tests.analysis.projection.models import (
    StandIn,
    given_network,
    measured_network,
    series,
    swept,
)
from tests.analysis.projection.traces import assumed_noise, step

COMMUNICATION = 4e-3


def traced(batch_size: int) -> Series:
    """A step of 2 ms + 0.1 ms a sample, of which 1 ms is the optimizer's; one bucket, and an
    all-reduce of 4 ms that nothing hides."""
    passes = 1e-3 + 1e-4 * batch_size
    trace = step([passes], forward=passes / 2, optimizer=1e-3)
    one = series(network_of=given_network, network_is_given=True)
    network = StandIn(lambda nbytes, n: COMMUNICATION)
    model = replace(one.model, trace=trace, network=network, noise=None, contention={})
    model = replace(model, overlap="none", fills_buckets=False)
    trial = replace(one.trial, batch_size=batch_size)
    return replace(one, trial=trial, model=model, spread=Spread())


def family() -> Family:
    [found] = families([traced(64), traced(16)])
    return found


def test_the_batch_is_where_the_step_pays_for_its_communication() -> None:
    """E = t1 ÷ (t1 + 4 ms): 80 % from t1 = 16 ms on, which 140 samples take."""
    [row] = iso_batches(family(), [8], 0.8)
    assert (row.batch_size, row.kind) == (140, "projected")
    assert row.low is not None
    assert row.low <= 140


def test_a_batch_is_rounded_up() -> None:
    """75 % from t1 = 12 ms on, 100 samples; 75.1 % from 12.064 ms, 100.6."""
    rows = [iso_batches(family(), [8], share)[0] for share in (0.75, 0.751)]
    assert [row.batch_size for row in rows] == [100, 101]


def test_no_batch_up_to_four_times_the_largest_is_an_answer_too() -> None:
    """At 256 samples t1 = 27.6 ms, and so 87.3 %."""
    [row] = iso_batches(family(), [8], 0.9)
    assert row.batch_size is None
    assert row.reason is not None
    assert row.reason.startswith("not with any batch up to 256, which reaches 87.3 %")


def test_a_band_that_never_reaches_the_efficiency_has_no_upper_end() -> None:
    [row] = iso_batches(family(), [10_000], 0.8)
    assert row.batch_size == 140
    assert row.high is None


def test_a_refused_group_size_has_the_reason_of_its_network() -> None:
    records = swept((32, 64))
    rows = [row for row in summarize(records) if row.implementation == "ddp"]
    found, _ = series_of(records, rows, network_of=measured_network)
    [row] = iso_batches(families(found)[0], [1000], 0.5)
    assert row.kind == "refused"


def test_one_batch_size_is_refused_with_the_command_that_measures_another() -> None:
    with pytest.raises(UsageError, match=r"dpbench sweep .* --batch-sizes 64,256"):
        families([traced(64)])


def test_a_trace_lies_on_the_line_through_the_others() -> None:
    traces = [
        step([2 + b, 3 + 2 * b], [7, 9], forward=1 + b / 2, optimizer=0.5) for b in (10.0, 20.0)
    ]
    found = affine_trace(traces, [10, 20], 40)
    assert found.forward_seconds == pytest.approx(21)
    assert found.backward_end_seconds == pytest.approx(83)
    assert found.ready_seconds == pytest.approx((42, 83))
    assert (found.optimizer_seconds, found.gradient_bytes) == (0.5, (7, 9))


def test_a_step_never_gets_shorter_with_its_batch() -> None:
    traces = [step([2.0], forward=1.0), step([1.0], forward=0.5)]
    ends = [affine_trace(traces, [10, 20], b).backward_end_seconds for b in (1, 10, 20, 80)]
    assert ends == sorted(ends)
    assert all(math.isfinite(end) and end > 0 for end in ends)


def test_traces_of_different_gradients_are_refused() -> None:
    with pytest.raises(UsageError, match="different gradients"):
        affine_trace([step([1.0], [4]), step([1.0], [8])], [1, 2], 3)


def test_nothing_jumps_between_the_batches_that_were_measured() -> None:
    """The members differ in their noise; half-way between them so does not the efficiency."""
    small, large = traced(64), traced(256)
    noisy = replace(small, model=replace(small.model, noise=assumed_noise(0.3)))
    [found] = families([noisy, large])

    def efficiency(batch: int) -> float:
        return sum(w * simulate_at(one, 8).efficiency.value for w, one in found.at(batch))

    values = [efficiency(batch) for batch in range(150, 172)]
    steps = [after - before for before, after in itertools.pairwise(values)]
    assert max(steps) < 2 * min(steps)
    assert found.at(64)[0][0] == 1
    assert [weight for weight, _ in found.at(128)] == pytest.approx([0.5, 0.5])


def test_a_part_that_takes_no_time_takes_none_at_any_batch() -> None:
    traces = [step([b], forward=0.0) for b in (1.0, 2.0)]
    assert affine_trace(traces, [10, 20], 40).forward_seconds == 0
