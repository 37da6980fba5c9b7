"""What an explanation adds to the factors: who is slowest, what to measure, which rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dpbench.analysis.diagnosis.causes import explain_rows
from dpbench.analysis.diagnosis.explanation import Explanation, slowest_of
from dpbench.analysis.diagnosis.factors import break_down
from dpbench.analysis.diagnosis.phases import step_phases
from dpbench.analysis.rows import summarize
from dpbench.analysis.throughput import exposed_communication_seconds, free_communication_seconds
from dpbench.records.trial import Phases, ReplicaPhases, Status, TrialRecord
from tests.analysis.builders import rank, record, steps_of, trial, weak_sweep, window


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


def test_shares_and_seconds_add_up_to_the_instrumented_step() -> None:
    found = step_phases([run()])
    assert found is not None
    assert {name: seconds.value for name, seconds in found.seconds.items()} == {
        "data": 1.0,
        "forward": 2.0,
        "backward": 3.0,
        "communication": 3.0,
        "optimizer": 1.0,
    }
    assert (found.step_seconds.value, found.data_share.value) == (10.0, 0.1)
    assert (found.steps, found.data_share.basis) == (2, "single value")


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


def test_communication_beside_jitter_is_what_is_left() -> None:
    """Steps of 1 and 3 s by turns on two ranks, in opposite order: of 4 s, 3 s are waited for."""
    ranks = [
        rank(number, window([4.0, 4.0], 64), without_sync=window(alone, 64))
        for number, alone in enumerate(([1.0, 3.0], [3.0, 1.0]))
    ]
    one = record(trial(group_size=2, timed_steps=2), ranks)
    assert free_communication_seconds(one) == 3.0
    assert exposed_communication_seconds(one) == 1.0
    values = {f.parts: f.value.value for f in break_down([one], {}).factors}
    assert values[("waiting",)] == pytest.approx(2 / 3)
    assert values[("communication",)] == pytest.approx(3 / 4)


def explained(records: list[TrialRecord]) -> dict[str, Explanation]:
    return {one.row.label: one for one in explain_rows(summarize(records))}


def test_every_row_with_a_speed_is_explained_except_plain_single_copies() -> None:
    failed = record(trial(backend="shm"), status=Status.FAILED)
    found = explained([*weak_sweep(), steps_of("independent", [0.01]), failed])
    assert list(found) == [
        "ddp/gloo ×1, batch 32",
        "ddp/gloo ×2, batch 32",
        "independent ×2, batch 32",
    ]


def test_the_slowest_rank_is_found_without_synchronization() -> None:
    """With it all ranks take equally long, as here."""
    found = slowest_of([weak_sweep(i)[-1] for i in range(3)])
    assert found is not None
    assert (found.rank, found.slowest_in, found.is_slow) == (1, 3, True)
    other = steps_of("ddp", [0.02, 0.02], [0.015, 0.014], repetition=3)
    changing = slowest_of([*[weak_sweep(i)[-1] for i in range(3)], other])
    assert changing is not None
    assert (changing.rank, changing.slowest_in, changing.is_slow) == (1, 3, False)


@pytest.mark.parametrize(
    ("steps", "is_slow"),
    [
        ([0.0110, 0.0111, 0.0112], True),
        ([0.0101, 0.0101, 0.0101], False),  # always, but by a trifle
        ([0.0101, 0.0120, 0.0150], False),  # so wildly that it may be chance
        ([0.0150], False),
    ],
)
def test_a_rank_is_slow_if_it_is_always_the_slowest_beyond_chance(
    steps: list[float], is_slow: bool
) -> None:
    records = [
        steps_of("ddp", [0.02, 0.02], [0.01, step], repetition=repetition)
        for repetition, step in enumerate(steps)
    ]
    found = slowest_of(records)
    assert found is not None
    assert (found.rank, found.slowest_in, found.is_slow) == (1, len(steps), is_slow)


def test_notes_say_what_to_measure() -> None:
    single, _, _, ddp = weak_sweep()
    (note,) = explained([single, ddp])["ddp/gloo ×2, batch 32"].notes
    assert note == (
        "contention and wrapper cannot be separated: no `independent` rows; "
        "add independent to --implementations"
    )
    strong = steps_of("ddp", [0.02, 0.02], [0.01, 0.01], scaling="strong", batch_size=33)
    whole = steps_of("single", [0.03], scaling="strong", batch_size=33)
    copies = steps_of("independent", [0.02, 0.02], scaling="strong", batch_size=33)
    (note,) = explained([whole, copies, strong])["ddp/gloo ×2, batch 33"].notes
    assert note.endswith("no `single` at batch 16,17; add 16,17 to --batch-sizes")
