"""Rows of a projection: measured, simulated, refused, and what each says of itself."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from dpbench.analysis.laws.band import published_misspecification
from dpbench.analysis.projection.project import (
    assumptions,
    band_meaning,
    project,
)
from dpbench.analysis.projection.series import series_of
from dpbench.analysis.projection.step_model import StepModel
from dpbench.analysis.provenance import weaker
from dpbench.analysis.summary import summarize
from dpbench.errors import UsageError
from dpbench.records.trial import TrialRecord
from tests.analysis.builders import steps_of, weak_sweep
from tests.analysis.communication.collective_records import collective_record, collective_spec
from tests.analysis.projection.models import (
    GLOO,
    given_network,
    measured_network,
    series,
    swept,
)
from tests.analysis.projection.traces import traced_sweep


def test_what_was_measured_stands_as_it_was_with_the_simulation_beside_it() -> None:
    alone, two = project(series(), [2, 1])
    assert (alone.kind, alone.group_size) == ("measured", 1)
    assert alone.efficiency is not None
    assert (alone.efficiency.value, alone.efficiency.basis) == (1, "baseline")
    assert two.step_seconds is not None
    assert two.step_seconds.value == pytest.approx(0.020)
    assert two.step_seconds.basis == "repetitions"
    assert two.simulated is not None
    assert two.simulation_error == pytest.approx(two.simulated.step_seconds.value / 0.020 - 1)
    assert alone.simulation_error is None


def test_the_simulation_of_one_replica_is_what_was_measured_of_it() -> None:
    one = series()
    assert one.anchor == pytest.approx(1.1, rel=0.05)  # traced steps take 10 ms, timed ones 11
    assert one.model.mean_step(1).seconds == pytest.approx(0.011)


def test_two_replicas_are_slowed_by_contention_stragglers_and_exposed_buckets() -> None:
    found = series().model.mean_step(2)
    assert found.seconds > 0.011 * 1.25  # independent copies take 12 and 13 ms, alone 10
    assert found.exposed_seconds > 0
    assert found.straggler_seconds > 0


def test_beyond_four_times_the_largest_group_rows_are_refused_with_a_remedy() -> None:
    eight, nine = project(series(), [8, 9])
    assert eight.kind == "extrapolated"
    assert (nine.kind, nine.step_seconds, nine.simulated) == ("refused", None, None)
    assert nine.reason is not None
    assert "--topology" in nine.reason


def test_a_given_network_projects_any_group_and_hides_what_another_one_gave() -> None:
    one = series(network_of=given_network, network_is_given=True, replicas_per_node=8)
    rows = project(one, [1, 2, 64, 10_000])
    assert [row.kind for row in rows] == ["measured", "projected", "projected", "projected"]
    efficiencies = [row.efficiency.value for row in rows if row.efficiency]
    assert efficiencies == sorted(efficiencies, reverse=True)
    widths = [row.efficiency.high - row.efficiency.low for row in rows[1:] if row.efficiency]  # type: ignore[operator]
    assert widths == sorted(widths)


def test_bands_hold_the_value_and_reach_further_up_than_down() -> None:
    [row] = project(series(), [8])
    step = row.step_seconds
    assert step is not None
    assert step.interval is not None
    assert step.low < step.value < step.high  # type: ignore[operator]
    assert step.high / step.value > step.value / step.low  # type: ignore[operator]
    assert (step.basis, step.confidence) == ("model", 0.9)


def test_throughput_and_efficiency_follow_from_the_step() -> None:
    [row] = project(series(), [4])
    assert row.step_seconds is not None
    assert row.throughput is not None
    assert row.efficiency is not None
    assert row.throughput.value == pytest.approx(4 * 32 / row.step_seconds.value)
    assert row.efficiency.value == pytest.approx(0.011 / row.step_seconds.value)
    assert (row.throughput.unit, row.efficiency.unit) == ("images/s", "of linear")


def test_the_spread_of_collectives_over_repetitions_widens_the_step() -> None:
    runs = [
        collective_record(collective_spec(repetition=i), lambda nbytes, f=factor: f * GLOO(nbytes))
        for i, factor in enumerate((0.8, 1.0, 1.25))
    ]
    sure, unsure = series(), series(collectives=runs)
    assert sure.spread.communication == (1, 1)
    low, high = unsure.spread.communication
    assert low < 0.8
    assert high > 1.25
    [narrow], [wide] = project(sure, [8]), project(unsure, [8])
    assert narrow.step_seconds is not None
    assert wide.step_seconds is not None
    assert wide.step_seconds.high > narrow.step_seconds.high  # type: ignore[operator]


def test_one_repetition_takes_the_spread_of_its_traced_steps() -> None:
    records = traced_sweep(steps=(0.009, 0.010, 0.011))
    found, _ = series_of(records, summarize(records), network_of=measured_network)
    low, high = found[0].spread.compute
    # Three steps: t of 2.92 with 2 degrees of freedom at 90 %, times 10 % ÷ √3.
    assert (low, high) == pytest.approx((0.845, 1.184), abs=0.001)


def test_another_bucket_cap_leaves_only_what_one_replica_measured() -> None:
    one = series(cap_mb=3)
    assert [bucket.nbytes for bucket in one.model.buckets] == [3 * 2**20, 3 * 2**20, 2 * 2**20]
    assert [row.kind for row in project(one, [1, 2])] == ["measured", "extrapolated"]


def test_series_without_a_trace_are_left_out_with_a_note_and_none_at_all_is_an_error() -> None:
    records = [*swept(), steps_of("torch-ddp", [0.02], backend="shm")]
    values = {"network_of": _only_gloo}
    found, notes = series_of(records, summarize(records), **values)
    assert [one.label for one in found] == ["ddp/gloo, batch 32"]
    assert any("nothing on shm" in note for note in notes)
    assert any(note.startswith("single: not projected") for note in notes)
    records = weak_sweep()
    with pytest.raises(UsageError, match="no gradient trace"):
        series_of(records, summarize([records[-1]]), **values)


def test_strong_scaling_is_not_projected() -> None:
    records = traced_sweep()
    strong = [replace(r, trial=replace(r.trial, scaling="strong")) for r in records]
    rows = [row for row in summarize(strong) if row.implementation == "ddp"]
    with pytest.raises(UsageError, match="sweep with --scaling weak"):
        series_of(strong, rows, network_of=measured_network)


def test_assumptions_have_their_numbers() -> None:
    text = "\n".join(assumptions(series(), 10_000, "a machine"))
    assert "as traced with ddp/gloo ×1, batch 32 on a machine (2 steps × 3), times 1.1" in text
    assert "gradients of 8 MiB travel in 2 buckets of up to 25 MiB, the first of 1 MiB" in text
    assert "2 take 1.25 × as long as one" in text
    assert "events rarer than 1 in 24 rank-steps were not seen" in text
    given_one = series(network_of=given_network, replicas_per_node=8)
    assert "every node has 8 replicas" in "\n".join(assumptions(given_one, 8, "a machine"))
    alone = series(network_of=given_network, replicas_per_node=1)
    assert "every node has 1 replica, which" in "\n".join(assumptions(alone, 8, "a machine"))
    law = published_misspecification().beyond
    assert f"exp({law.low:g} r) to exp({law.high:g} r)" in band_meaning()


def test_without_copies_that_share_a_machine_the_assumption_says_so() -> None:
    one = series()
    assert isinstance(one.model, StepModel)
    alone = replace(one, model=replace(one.model, contention={}))
    assert "no `independent` rows tell" in "\n".join(assumptions(alone, 8, "a machine"))


def _only_gloo(backend: str):
    if backend != "gloo":
        raise UsageError(f"nothing on {backend} was measured")
    return measured_network()


def test_the_band_holds_the_error_that_the_simulation_was_seen_to_have() -> None:
    one = series()
    [two, three] = project(one, [2, 3])
    assert two.simulation_error is not None
    off = abs(math.log1p(two.simulation_error))
    assert one.model_errors == {2: pytest.approx(off)}
    assert three.step_seconds is not None
    low, high = three.step_seconds.interval or (0.0, 0.0)
    assert math.log(three.step_seconds.value / low) >= off
    assert math.log(high / three.step_seconds.value) >= off


def test_what_stands_on_extrapolated_collectives_is_no_interpolation() -> None:
    assert [series().simulated_kind(n) for n in (1, 2, 3)] == [
        "interpolated",
        "interpolated",
        "extrapolated",
    ]
    assert weaker("interpolated", "extrapolated") == "extrapolated"
    one = series()
    wide = replace(one, rows={**one.rows, 4: replace(one.rows[2], group_size=4)})
    assert wide.measured_sizes == (1, 2, 4)
    assert wide.simulated_kind(3) == "extrapolated"


def test_the_sample_size_is_that_of_repetitions() -> None:
    [row] = project(series(), [3])
    assert row.step_seconds is not None
    assert row.step_seconds.sample_size == 3


def test_shared_memory_does_not_leave_its_machine() -> None:
    one = series(network_of=given_network, network_is_given=True, replicas_per_node=8)
    shm = replace(one, trial=replace(one.trial, backend="shm"))
    eight, nine = project(shm, [8, 9])
    assert (eight.kind, nine.kind) == ("projected", "refused")
    assert nine.reason is not None
    assert nine.reason.startswith("shm stays on one machine, and a node has 8 replicas")
    assert (nine.simulated, shm.simulated_kind(9)) == (None, "refused")
    measured = series()
    here = replace(measured, trial=replace(measured.trial, backend="shm"))
    assert "on one machine with as many cores" in "\n".join(assumptions(here, 8, "a machine"))


def test_inputs_without_an_interval_are_named() -> None:
    text = "\n".join(assumptions(series(), 8, "a machine"))
    assert (
        "the error of computing, communication, contention is unknown and not in the band" in text
    )


def with_hook(hook: str) -> list[TrialRecord]:
    return [
        replace(record, trial=replace(record.trial, comm_hook=hook))
        if record.trial.implementation == "ddp"
        else record
        for record in swept()
    ]


def test_a_hook_that_sends_half_the_bytes_is_projected_with_half_of_them() -> None:
    records = with_hook("bf16")
    [one], _ = series_of(records, summarize(records), network_of=measured_network)
    assert one.network.wire_share == 0.5
    plain, half = series().model.mean_step(2), one.model.mean_step(2)
    assert 0 < half.exposed_seconds < plain.exposed_seconds


def test_a_hook_whose_bytes_depend_on_shapes_is_not_projected() -> None:
    records = with_hook("powersgd")
    with pytest.raises(UsageError, match="depends on the shapes of the gradients"):
        series_of(records, summarize(records), network_of=measured_network)
