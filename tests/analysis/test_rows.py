"""Records to rows: references, mixed outcomes, notes, and never a NaN."""

from __future__ import annotations

import random
from typing import Any

import pytest

from dpbench.analysis.frames import row_frame
from dpbench.analysis.rows import Row, order_of, summarize
from dpbench.records.trial import Status, TrialRecord
from dpbench.specs.traits import IMPLEMENTATIONS
from tests.analysis.builders import WRONG, record, run, runs, trial
from tests.builders import configuration


def frame_row(row: Row) -> dict[str, object]:
    """The row as programs read it, without what is missing."""
    return row_frame([row]).iloc[0].dropna().to_dict()


def test_repetitions_become_one_row() -> None:
    (row,) = summarize(runs(trial(), (100.0, 110.0, 121.0)))
    found = frame_row(row)
    assert (found["images_per_second"], found["item"]) == (pytest.approx(110.0), "images")
    assert (row.repetitions, found["timed_steps"], row.verified) == (3, 4, True)
    assert (row.status, row.reason, row.notes) == (Status.COMPLETED, None, ())
    assert (found["final_loss"], "final_loss_low" in found) == (1.5, False)
    assert found["loss_delta_per_step"] == pytest.approx(0.5 / 4)
    assert found["peak_memory_bytes"] == 300 * 2**20
    assert (found["group_size"], found["architecture"]) == (1, "mnist_cnn"), "settings, too"


def test_trials_that_were_tried_again_are_counted_with_the_reason() -> None:
    again = {"tried_again_after": "rank 1 was killed by SIGKILL"}
    completed = [run(trial(), 100.0, repetition=r, **again) for r in range(2)]
    failed = [record(trial(batch_size=64), reason="rank 0 was killed by SIGKILL", **again)]
    first, second = summarize([*completed, run(trial(), 100.0, repetition=2), *failed])
    words = "tried again, as the first try was ended: rank 1 was killed by SIGKILL"
    assert [f"2 trials {words}" in note for note in first.notes] == [True]
    assert [f"1 trial {words}" in note for note in second.notes] == [True]


def test_speedups_are_against_single_and_the_relative_one_is_a_column_by_name() -> None:
    one, two, single = summarize(
        [
            run(trial("single", "none"), 100.0),
            run(trial("ddp", "gloo"), 80.0),
            run(trial("ddp", "gloo", 2), 150.0),
        ]
    )
    found = frame_row(two)
    assert found["speedup"] == pytest.approx(1.5)
    assert found["efficiency"] == pytest.approx(0.75)
    assert found["speedup_relative"] == pytest.approx(150 / 80)
    assert frame_row(one)["speedup"] == pytest.approx(0.8)
    assert single.speedup is not None
    assert (single.speedup.value, single.speedup.basis) == (1.0, "definition")


def test_speedups_of_equal_passes_are_paired_from_five_on() -> None:
    passes = [1.0, 0.7, 1.3, 0.9, 1.1]
    one = runs(trial(), [100 * p for p in passes])
    two = runs(trial(group_size=2), [180 * p for p in passes])
    _, paired = summarize([*one, *two])
    _, few = summarize([*one[:4], *two[:4]])
    _, unequal = summarize([*one[1:], *two])
    for row, half_width in ((paired, 0), (few, 0.9), (unequal, 0.5)):
        assert row.speedup is not None
        assert row.speedup.interval is not None
        assert max(row.speedup.sides) >= half_width
    assert paired.speedup is not None
    assert paired.speedup.interval == pytest.approx((1.8, 1.8))
    assert paired.efficiency is not None
    assert paired.efficiency.sample_size == 5


def test_a_missing_reference_is_noted() -> None:
    (row,) = summarize([run(trial(group_size=2), 150.0)])
    assert row.speedup is None
    assert row.notes[0] == ("no speedup, because ddp/gloo ×1, batch 32 has no completed run")


def ended(status: Status, reason: str, repetition: int = 0) -> TrialRecord:
    return record(trial(), status=status, reason=reason, repetition=repetition)


def test_the_worst_repetition_decides_and_the_others_are_still_shown() -> None:
    failed = ended(Status.FAILED, "rank 1 exited", 2)
    (row,) = summarize([run(trial(), 100.0), ended(Status.TIMED_OUT, "no step", 1), failed])
    assert (row.status, row.repetitions) == (Status.FAILED, 1)
    assert row.reason == "1 of 3 repetitions failed: rank 1 exited"
    assert (failed.facts.item, row.item) == ("samples", "images")  # the unit of what was measured
    assert frame_row(row)["images_per_second"] == pytest.approx(100.0)


def test_skipped_only_if_all_are_skipped() -> None:
    first, second = (ended(Status.SKIPPED, "no CUDA device", number) for number in range(2))
    (row,) = summarize([first, second])
    assert (row.status, row.reason) == (Status.SKIPPED, "no CUDA device")
    (row,) = summarize([first, run(trial(), 100.0, repetition=1)])
    assert row.status is Status.COMPLETED
    assert row.reason == "1 of 2 repetitions skipped: no CUDA device"


def test_wrong_gradients_never_have_a_speed() -> None:
    reason = "gradients differ in conv1.weight"
    wrong = run(trial(), 900.0, verification=WRONG, reason=reason, repetition=1)
    (row,) = summarize([run(trial(), 100.0), wrong])
    assert (row.status, row.verified) == (Status.WRONG_GRADIENTS, False)
    assert reason in str(row.reason)
    speeds = {"images_per_second", "speedup", "step_seconds_p50", "final_loss"}
    assert not frame_row(row).keys() & speeds


def test_implementations_stand_in_their_order_and_numbers_in_their_labels_by_value() -> None:
    """Plain ones before their variants, and unknown ones last."""
    variants = {
        "ddp": ["ddp", "ddp(bf16)", "ddp(lr 1e-05)", "ddp(lr 0.05)", "ddp(lr 0.1)"],
        "torch-ddp": ["torch-ddp(20 steps)", "torch-ddp(100 steps)"],
    }
    labels = [label for name in IMPLEMENTATIONS for label in variants.get(name, [name])]
    labels.append("horovod")
    shuffled = random.Random(0).sample(labels, len(labels))

    def key(label: str) -> tuple[Any, ...]:
        return order_of(configuration(implementation=label.partition("(")[0]), label)

    assert sorted(shuffled, key=key) == labels
