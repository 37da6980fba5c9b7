from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dpbench.analysis.communication.collective_cost import measured_cost
from dpbench.analysis.communication.curves import curves
from dpbench.analysis.projection.bucket_advice import BucketAdvice, advise_buckets
from dpbench.analysis.projection.project import project
from dpbench.analysis.projection.series import series_of
from dpbench.analysis.projection.step_model import Spread
from dpbench.analysis.summary import summarize
from dpbench.errors import UsageError
from dpbench.records.trial import TrialRecord
from tests.analysis.communication.collective_records import (
    affine,
    collective_record,
    collective_spec,
)
from tests.analysis.projection.traces import traced_sweep


def advise(
    records: Sequence[TrialRecord],
    latency: float = 10e-6,
    bandwidth: float = 4e9,
    broadcast: float | None = None,
    *,
    seen_error: float = 0.0,
) -> BucketAdvice:
    """As if the simulation had been off by so much where it could be checked."""
    measured = [collective_record(collective_spec(), affine(latency, bandwidth))]
    if broadcast is not None:
        spec = collective_spec(collective="broadcast")
        measured.append(collective_record(spec, lambda _: broadcast))
    found = curves(measured)
    rows = [row for row in summarize(records) if row.implementation.startswith("ddp")]
    [series], _ = series_of(records, rows, network_of=lambda backend: measured_cost(found, backend))
    return advise_buckets(replace(series, model_errors={2: math.log1p(seen_error)}), 2)


def sweep(repetitions: int = 3, **changes: Any) -> list[TrialRecord]:
    return [r for i in range(repetitions) for r in traced_sweep(i, **changes)]


def test_a_gain_below_the_error_that_was_seen_is_not_recommended() -> None:
    gain = advise(sweep()).recommended.gain.value
    assert advise(sweep(), seen_error=gain / 2).is_worthwhile
    assert not advise(sweep(), seen_error=2 * gain).is_worthwhile


def test_small_buckets_win_where_latency_is_small() -> None:
    found = advise(sweep())
    assert found.recommended.cap_mb == 1.0
    # One bucket of 1 MiB remains, against the 7 MiB of the default's second one.
    assert found.present.exposed_seconds.value == pytest.approx(10e-6 + 7 * 2**20 / 4e9, rel=1e-3)
    assert found.recommended.exposed_seconds.value == pytest.approx(10e-6 + 2**20 / 4e9, rel=1e-3)
    assert found.is_worthwhile
    assert found.recommended.gain.basis == "repetitions"


def test_one_bucket_wins_where_latency_is_large() -> None:
    found = advise(sweep(), latency=20e-3)
    assert len(found.recommended.buckets) == 1
    assert found.is_worthwhile


def test_computing_is_slowed_by_contention_and_stragglers() -> None:
    found = advise(sweep(), latency=1e-9, bandwidth=1e15)
    # One replica takes 11 ms; contention 1.25; the slower of two 14 ÷ 13.5 of their mean.
    expected = 0.011 * 1.25 * 14 / 13.5
    assert found.present.step_seconds.value == pytest.approx(expected, rel=1e-3)
    assert not found.is_worthwhile


def test_a_gain_of_a_single_repetition_is_over_its_steps() -> None:
    found = advise(sweep(1, steps=(0.010, 0.011, 0.012)))
    assert (found.recommended.gain.basis, found.recommended.gain.sample_size) == (
        "step batches",
        3,
    )


def test_a_gain_that_differs_from_trace_to_trace_is_not_recommended() -> None:
    # In one repetition gradients come evenly, in the other all at once.
    even = traced_sweep(0)
    steps, shares = (0.010, 0.010), [0.7] * 8
    at_once = traced_sweep(1, ready_seconds=tuple(tuple(s * x for x in shares) for s in steps))
    found = advise([*even, *at_once], latency=1e-4)
    assert found.recommended.gain.interval is not None
    assert found.recommended.gain.interval[0] < 0
    assert not found.is_worthwhile


def test_the_measured_step_stands_beside_the_simulated_one() -> None:
    found = advise(sweep())
    assert found.measured_step_seconds is not None
    assert found.measured_step_seconds.value == pytest.approx(0.020)
    assert found.measured_step_seconds.unit == "s"


def test_buffers_cost_a_broadcast_if_there_is_a_curve() -> None:
    plain = advise(sweep(), broadcast=1e-3).present.step_seconds.value
    found = advise(sweep(buffer_bytes=1000), broadcast=1e-3)
    assert found.present.step_seconds.value == pytest.approx(plain + 1e-3)
    assert any("in the time of a broadcast" in note for note in found.notes)
    assert any("of an all-reduce" in note for note in advise(sweep(buffer_bytes=1000)).notes)


def test_the_present_step_is_the_one_that_project_shows() -> None:
    found = advise(sweep(steps=(0.009, 0.010, 0.012)))
    [row] = project(found.series, [2])
    assert row.simulated is not None
    assert found.present.step_seconds.value == row.simulated.step_seconds.value
    assert found.present.exposed_seconds.value == row.simulated.exposed_seconds.value


def test_a_gain_that_hangs_on_what_collectives_cost_is_not_recommended() -> None:
    sure = advise(sweep())
    series = replace(sure.series, spread=Spread(communication=(1.0, 1000.0)))
    found = advise_buckets(series, 2)
    assert sure.recommended.cap_mb == found.recommended.cap_mb == 1.0
    assert found.recommended.gain.low < sure.recommended.gain.low  # type: ignore[operator]
    assert found.recommended.gain.confidence == 0.9


def test_a_group_that_was_not_measured_has_a_label_and_no_row() -> None:
    found = advise_buckets(advise(sweep()).series, 4)
    assert (found.label, found.row, found.measured_step_seconds) == (
        "ddp/gloo ×4, batch 32",
        None,
        None,
    )
    with pytest.raises(UsageError, match="more than 4 times"):
        advise_buckets(found.series, 64)


def test_beside_the_search_stands_the_closed_form() -> None:
    """8 MiB at 4 GB/s take 2.1 ms of a backward pass of 6.875: so much stays for 477 latencies."""
    [note] = [note for note in advise(sweep()).notes if "got ready evenly" in note]
    assert note.startswith("ddp/gloo, batch 32, 2 replicas: ")
    assert "a network of 10 µs a collective" in note
    assert "477 buckets of 17.17 KiB, 14.4 µs exposed" in note
