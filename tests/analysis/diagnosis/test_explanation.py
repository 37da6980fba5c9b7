"""What an explanation adds to the factors: who is slowest, what to measure, which rows."""

from __future__ import annotations

import pytest

from dpbench.analysis.diagnosis.causes import explain_rows
from dpbench.analysis.diagnosis.explanation import Explanation, slowest_of
from dpbench.analysis.diagnosis.factors import break_down
from dpbench.analysis.diagnosis.phases import REPLICA_PHASES, step_phases
from dpbench.analysis.rows import summarize
from dpbench.analysis.throughput import exposed_communication_seconds, free_communication_seconds
from dpbench.records.trial import Phase, Status, TrialRecord
from dpbench.report.answers.explain import not_separated
from tests.analysis.builders import rank, record, steps_of, trial, weak_sweep, window


def phases(backward: float) -> dict[Phase, tuple[float, ...]]:
    """Two steps, also of 2 s forward, and on average 1 s for data and 1 s for the optimizer."""
    return {
        "data": (0.5, 1.5),
        "forward": (2.0, 2.0),
        "backward": (backward + 0.25, backward - 0.25),
        "optimizer": (1.0, 1.0),
    }


@pytest.mark.parametrize("parts", [{}, {name: 2.0 + i for i, name in enumerate(REPLICA_PHASES)}])
def test_what_is_done_for_replicas_is_told_where_one_process_drives_them(
    parts: dict[str, float],
) -> None:
    """Seconds add up to the instrumented step; backward takes 5 and 7 s, without synchronization 4
    and 2 s."""
    within = {name: (mean - 1, mean + 1) for name, mean in parts.items()}
    ranks = [
        rank(
            number,
            window([10.0, 12.0], 64),
            phases={"timed": phases(backward), "unsynced": phases(bare)},
            replica_phases=within,
        )
        for number, (backward, bare) in enumerate([(5.0, 4.0), (7.0, 2.0)])
    ]
    found = step_phases([record(trial(group_size=2), ranks)])
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
    assert {name: one.value for name, one in found.of_replicas.items()} == parts


def test_communication_beside_jitter_is_what_is_left() -> None:
    """Steps of 1 and 3 s by turns on two ranks, in opposite order: of 4 s, 3 s are waited for."""
    ranks = [
        rank(number, window([4.0, 4.0], 64), unsynced=window(alone, 64))
        for number, alone in enumerate(([1.0, 3.0], [3.0, 1.0]))
    ]
    one = record(trial(group_size=2, steps=2), ranks)
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


@pytest.mark.parametrize(
    ("steps", "is_slow"),
    [
        ([0.0110, 0.0111, 0.0112], True),
        ([0.0110, 0.0111, 0.0112, 0.0090], False),  # now another one
        ([0.0101, 0.0101, 0.0101], False),  # always, but by a trifle
        ([0.0101, 0.0120, 0.0150], False),  # so wildly that it may be chance
        ([0.0150], False),
    ],
)
def test_a_rank_is_slow_if_it_is_always_the_slowest_beyond_chance(
    steps: list[float], is_slow: bool
) -> None:
    """Without synchronization: with it all ranks take equally long."""
    records = [
        steps_of("ddp", [0.02, 0.02], [0.01, step], repetition=repetition)
        for repetition, step in enumerate(steps)
    ]
    found = slowest_of(records)
    assert found is not None
    assert (found.rank, found.is_slow) == (1, is_slow)
    assert found.slowest_in == sum(step > 0.01 for step in steps)


def test_notes_say_what_to_measure() -> None:
    strong = steps_of("ddp", [0.02, 0.02], [0.01, 0.01], scaling="strong", batch_size=33)
    whole = steps_of("single", [0.03], scaling="strong", batch_size=33)
    copies = steps_of("independent", [0.02, 0.02], scaling="strong", batch_size=33)
    found = explained([whole, copies, strong])["ddp/gloo ×2, batch 33"]
    (note,) = not_separated(found)
    assert note.endswith("no `single` at batch 16,17; add 16,17 to --batch-sizes")
