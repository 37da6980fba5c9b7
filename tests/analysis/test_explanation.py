"""What an explanation adds to the factors: who is slowest, what to measure, which rows."""

from __future__ import annotations

from dpbench.analysis.explanation import Explanation, explain, slowest_rank
from dpbench.analysis.summary import summarize
from dpbench.records import Status, TrialRecord
from tests.analysis.builders import record, steps_of, trial, weak_sweep


def explained(records: list[TrialRecord]) -> dict[str, Explanation]:
    return {one.row.label: one for one in explain(records, summarize(records))}


def test_every_row_with_a_speed_is_explained_except_plain_single_copies() -> None:
    failed = record(trial(backend="shm"), status=Status.FAILED)
    found = explained([*weak_sweep(), steps_of("independent", [0.01]), failed])
    assert list(found) == [
        "ddp/gloo ×1, batch 32",
        "ddp/gloo ×2, batch 32",
        "independent ×2, batch 32",
    ]


def test_the_absolute_efficiency_is_the_absolute_speedup_per_replica() -> None:
    passes = [weak_sweep(i, slower) for i, slower in enumerate([1.0, 1.2, 1.1])]
    found = explained([record for each in passes for record in each])["ddp/gloo ×2, batch 32"]
    assert found.factors.efficiency is not None
    assert found.row.absolute_speedup is not None
    per_replica = found.row.absolute_speedup.value / 2
    assert abs(found.factors.efficiency.value - per_replica) < 1e-12


def test_a_trial_that_was_run_again_counts_once_as_it_ended_last() -> None:
    first, again = weak_sweep(slower=3.0), weak_sweep()
    found = explained([*first, *again])["ddp/gloo ×2, batch 32"]
    assert found.factors.step_seconds.value == 0.020
    assert found.factors.step_seconds.sample_size == 1


def test_wrong_gradients_are_not_compared_with() -> None:
    single, *others = weak_sweep()
    wrong = record(single.trial, single.ranks, status=Status.WRONG_GRADIENTS)
    found = explained([wrong, *others])["ddp/gloo ×2, batch 32"]
    assert found.factors.efficiency is None
    assert "no absolute efficiency, because `single` at batch 32" in found.notes[0]


def test_the_slowest_rank_is_found_without_synchronization() -> None:
    """With it all ranks take equally long, as here."""
    slowest = slowest_rank([weak_sweep(i)[-1] for i in range(3)])
    assert slowest is not None
    assert (slowest.rank, slowest.slowest_in, slowest.always) == (1, 3, True)
    other = steps_of("ddp", [0.02, 0.02], [0.015, 0.014], repetition=3)
    changing = slowest_rank([*[weak_sweep(i)[-1] for i in range(3)], other])
    assert changing is not None
    assert (changing.rank, changing.slowest_in, changing.always) == (1, 3, False)


def test_one_process_has_no_slowest_rank() -> None:
    assert slowest_rank([steps_of("dp", [0.02], [0.015], group_size=2)]) is None


def test_notes_say_what_to_measure() -> None:
    single, _, _, ddp = weak_sweep()
    (note,) = explained([single, ddp])["ddp/gloo ×2, batch 32"].notes
    assert note == (
        "contention and wrapper cannot be told apart: no `independent` rows; "
        "add independent to --implementations"
    )
    strong = steps_of("ddp", [0.02, 0.02], [0.01, 0.01], scaling="strong", batch_size=33)
    whole = steps_of("single", [0.03], scaling="strong", batch_size=33)
    copies = steps_of("independent", [0.02, 0.02], scaling="strong", batch_size=33)
    (note,) = explained([whole, copies, strong])["ddp/gloo ×2, batch 33"].notes
    assert note.endswith("no `single` at batch 16,17; add 16,17 to --batch-sizes")


def test_repetitions_that_could_not_be_compared_are_counted() -> None:
    complete, lacking = weak_sweep(0), weak_sweep(1)
    (note,) = explained([*complete, lacking[-1]])["ddp/gloo ×2, batch 32"].notes
    assert "factors over 1 of 2 repetitions" in note
