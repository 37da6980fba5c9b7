from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from dpbench.analysis.communication.collective_cost import measured_cost
from dpbench.analysis.communication.curve import curves
from dpbench.analysis.simulation.bucket_advice import BucketAdvice, advise_buckets
from dpbench.analysis.simulation.inputs import simulation_inputs
from dpbench.analysis.summary import summarize
from dpbench.records import TrialRecord
from tests.analysis.communication.collective_records import (
    affine,
    collective_record,
    collective_spec,
)
from tests.analysis.simulation.traces import traced_sweep


def advise(
    records: Sequence[TrialRecord],
    latency: float = 10e-6,
    bandwidth: float = 4e9,
    broadcast: float | None = None,
) -> BucketAdvice:
    measured = [collective_record(collective_spec(), affine(latency, bandwidth))]
    if broadcast is not None:
        spec = collective_spec(collective="broadcast")
        measured.append(collective_record(spec, lambda _: broadcast))
    found = curves(measured)
    row = next(
        r for r in summarize(records) if r.implementation.startswith("ddp") and r.group_size == 2
    )
    assert row.configuration is not None
    inputs = simulation_inputs(records, row.configuration)
    return advise_buckets(row, inputs, measured_cost(found, "gloo"), found)


def sweep(repetitions: int = 3, **changes: Any) -> list[TrialRecord]:
    return [r for i in range(repetitions) for r in traced_sweep(i, **changes)]


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
    # Contention 1.25; ranks differ by 5.24 % from each other, so the slower of two by 0.5642 σ.
    expected = 0.01 * 1.25 * (1 + 0.0524 * 0.5642 + 0.0524**2 / 2)
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
    assert not any("buffers" in note for note in found.notes)
    assert any("buffers are sent" in note for note in advise(sweep(buffer_bytes=1000)).notes)
