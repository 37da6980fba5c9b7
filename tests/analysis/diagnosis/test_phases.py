"""The phases of a step, worked by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dpbench.analysis.diagnosis.phases import phase_seconds, step_phases
from dpbench.records import Phases, ReplicaPhases, TrialRecord
from tests.analysis.builders import rank, record, trial, window


def phases(data: float, forward: float, backward: float, optimizer: float) -> Phases:
    """Two steps around the given means."""
    return Phases(
        data_seconds=(0.5 * data, 1.5 * data),
        forward_seconds=(forward, forward),
        backward_seconds=(backward + 0.25, backward - 0.25),
        optimizer_seconds=(optimizer, optimizer),
    )


def run(*, slower: float = 1.0, without: bool = True, **changes: Any) -> TrialRecord:
    """Backward takes 5 and 7 s with synchronization, 4 and 2 s without, on ranks 0 and 1."""
    ranks = [
        rank(
            number,
            window([10.0, 12.0], 64),
            phases=phases(1.0, 2.0 * slower, backward, 1.0),
            phases_without_sync=phases(1.0, 2.0, bare, 1.0) if without else None,
        )
        for number, (backward, bare) in enumerate([(5.0, 4.0), (7.0, 2.0)])
    ]
    return record(trial(group_size=2, **changes), ranks)


def test_communication_is_what_backward_takes_longer() -> None:
    assert phase_seconds(run()) == {
        "data": 1.0,
        "forward": 2.0,
        "backward": 3.0,
        "communication": 3.0,
        "optimizer": 1.0,
    }


def test_without_a_second_measurement_backward_keeps_it() -> None:
    assert phase_seconds(run(without=False)) == {
        "data": 1.0,
        "forward": 2.0,
        "backward": 6.0,
        "optimizer": 1.0,
    }


def test_shares_and_seconds_add_up_to_the_instrumented_step() -> None:
    found = step_phases([run()])
    assert found is not None
    assert [phase.name for phase in found.phases] == [
        "data",
        "forward",
        "backward",
        "communication",
        "optimizer",
    ]
    assert [phase.share.value for phase in found.phases] == [0.1, 0.2, 0.3, 0.3, 0.1]
    assert found.instrumented_step_seconds.value == 10.0
    assert found.timed_step_seconds.value == 11.0
    assert (found.steps, found.phases[0].seconds.basis) == (2, "single value")


def test_what_is_done_for_replicas_is_told_where_one_process_drives_them() -> None:
    parts = ReplicaPhases(
        scatter_seconds=(1.0, 3.0),
        replicate_seconds=(3.0, 3.0),
        compute_seconds=(4.0, 4.0),
        gather_seconds=(5.0, 5.0),
        reduce_seconds=(6.0, 6.0),
    )
    plain = run()
    ranks = tuple(replace(rank, replica_phases=parts) for rank in plain.ranks[:1])
    found = step_phases([replace(plain, ranks=ranks)])
    assert found is not None
    assert {name: one.value for name, one in found.of_replicas.items()} == {
        "scatter": 2.0,
        "replicate": 3.0,
        "compute": 4.0,
        "gather": 5.0,
        "reduce": 6.0,
    }
    apart = step_phases([plain])
    assert apart is not None
    assert apart.of_replicas == {}


def test_repetitions_give_an_interval() -> None:
    """Forward of 2 and 4 s: 3 ± 12.706 · 1."""
    found = step_phases([run(), run(slower=2.0, repetition=1)])
    assert found is not None
    forward = found.phases[1].seconds
    assert (forward.value, forward.sample_size, forward.basis) == (3.0, 2, "repetitions")
    assert forward.half_width == pytest.approx(12.706, abs=1e-3)


def test_communication_may_be_negative_and_is_not_clipped() -> None:
    quick = rank(0, window([1.0], 8), phases=phases(1, 1, 1, 1))
    slow = rank(0, window([1.0], 8), phases_without_sync=phases(1, 1, 2, 1))
    both = rank(0, quick.timed, phases=quick.phases, phases_without_sync=slow.phases_without_sync)
    found = phase_seconds(record(trial(), [both]))
    assert found is not None
    assert found["communication"] == -1.0


def test_a_rank_that_measured_nothing_leaves_the_trial_out() -> None:
    mixed = record(trial(group_size=2), [run().ranks[0], rank(1, window([1.0], 8))])
    assert phase_seconds(mixed) is None
    assert step_phases([mixed]) is None
    assert step_phases([mixed, run(repetition=1)]) == step_phases([run(repetition=1)])
