"""Which configurations belong together, what a selection is, and what cannot be compared."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from dpbench.analysis.comparisons.comparison import Comparison
from dpbench.analysis.comparisons.matching import RUN_IDENTITY, Side, typed_value
from dpbench.errors import NotComparable, UsageError
from dpbench.records.trial import Status
from dpbench.specs import Configuration, WorkloadSpec
from tests.analysis.builders import WRONG, compare_speeds, record, run, runs, side, trial, varied

SPEEDS = (100.0, 101.0, 99.0)
NOT_IDENTITY = {
    "workload",
    "devices",  # their kind counts
    "replicas_by_node",  # as "nodes"
    "window_seconds",  # how long it was measured
    "is_instrumented",
    "lr_scaling",  # the rate that it gives counts
    "script",  # whether other arguments make it slower is what people ask
    "files_sha256",  # whether an edit made it slower is what people ask
}


def grid(label: str, **changes: object) -> Side:
    """ddp and torch-ddp on gloo and shm at two group sizes."""
    return side(
        label,
        *(
            runs(trial(name, backend, group_size, **changes), SPEEDS)
            for name in ("ddp", "torch-ddp")
            for backend in ("gloo", "shm")
            for group_size in (1, 2)
        ),
    )


def labels(compared: Comparison) -> list[str]:
    return [row.label for row in compared.rows["images_per_second"]]


def test_every_setting_is_either_what_was_run_or_how_it_was_measured() -> None:
    names = {f.name for spec in (Configuration, WorkloadSpec) for f in fields(spec)}
    assert names - set(RUN_IDENTITY) == NOT_IDENTITY
    assert set(RUN_IDENTITY) - names == {"device", "nodes"}


def test_configurations_of_two_sweeps_are_paired_in_the_order_of_tables() -> None:
    compared = compare_speeds(
        side("a", runs(trial("torch-ddp"), SPEEDS), runs(trial(group_size=2), SPEEDS)),
        side("b", runs(trial(group_size=2), SPEEDS), runs(trial("torch-ddp"), SPEEDS)),
    )
    assert labels(compared) == ["ddp/gloo ×2, batch 32", "torch-ddp/gloo ×1, batch 32"]
    assert not compared.had_load_together


def test_a_selection_settles_what_it_names_for_both_sides() -> None:
    whole = grid("x")
    ours = replace(whole, label="ours", where={"implementation": "ddp"})
    theirs = replace(whole, label="theirs", where={"implementation": "torch-ddp"})
    compared = compare_speeds(theirs, ours)
    assert labels(compared) == [
        "gloo ×1, batch 32",
        "gloo ×2, batch 32",
        "shm ×1, batch 32",
        "shm ×2, batch 32",
    ]
    assert compared.had_load_together
    across = compare_speeds(
        replace(ours, where={"implementation": "ddp", "backend": "shm"}),
        replace(theirs, where={"implementation": "torch-ddp", "backend": "gloo"}),
    )
    assert labels(across) == ["×1, batch 32", "×2, batch 32"]


def test_sides_that_share_trials_are_refused() -> None:
    whole = grid("x")
    with pytest.raises(UsageError, match="trials in common"):
        compare_speeds(whole, replace(whole, label="y"))


def test_configurations_that_cannot_be_told_apart_are_refused() -> None:
    whole = grid("x")
    with pytest.raises(UsageError, match=r"more than one configuration .* differ in backend") as it:
        compare_speeds(replace(whole, where={"backend": "gloo"}), side("y", whole.sweep.records))
    assert str(it.value).endswith("; select one with DIR:key=value")


def test_only_repetitions_that_may_be_believed_count() -> None:
    failed = record(trial(), status=Status.FAILED, repetition=1)
    wrong = run(trial(), 100.0, verification=WRONG, repetition=2)
    good = runs(trial(), SPEEDS)
    for other, usable in ((failed, 1), (wrong, 0)):
        compared = compare_speeds(side("a", good), side("b", [good[0], other]))
        (row,) = compared.rows["images_per_second"]
        assert row.repetitions == (3, usable)


def test_nothing_in_common_is_not_comparable_and_says_why() -> None:
    slow, fast = (
        WorkloadSpec(architecture="mlp", dataset="digits", lr=rate, seed=seed)
        for rate, seed in ((0.01, 0), (0.1, 1))
    )
    baseline = side("a", runs(trial(workload=slow), SPEEDS))
    candidate = side("b", runs(trial(workload=fast), SPEEDS))
    with pytest.raises(NotComparable, match=r"lr: 0\.01 -> 0\.1; seed: 0 -> 1") as error:
        compare_speeds(baseline, candidate)
    assert error.value.exit_status == 5


def test_a_selection_of_one_implementation_on_both_sides_leaves_its_settings_compared() -> None:
    """A setting that differs by accident is an error, and one that is selected is not."""
    where = {"implementation": "ddp"}
    small = runs(trial(bucket_cap_mb=2.0), SPEEDS)
    ours = side("a", runs(trial(), SPEEDS), where=where)
    with pytest.raises(NotComparable, match="bucket_cap_mb: auto -> 2"):
        compare_speeds(ours, side("b", small, where=where))
    chosen = side("b", small, where={**where, "bucket_cap_mb": "2"})
    assert labels(compare_speeds(ours, chosen)) == ["ddp/gloo ×1, batch 32"]


def test_a_selection_is_compared_with_settings_as_they_are_typed() -> None:
    rates = side("a", *(runs(varied(trial(), lr=rate), SPEEDS) for rate in (1.0, 2.0)))
    one, two = (replace(rates, label=f"a:lr={text}", where={"lr": text}) for text in "12")
    assert labels(compare_speeds(one, two)) == ["ddp/gloo ×1, batch 32"]


def test_a_window_that_fills_a_time_is_not_named_by_its_fewest_steps() -> None:
    filling = side("a", runs(trial(window_seconds=1.0), SPEEDS), where={"steps": "1000"})
    with pytest.raises(UsageError, match="no trial has steps '1000'; there is fill 1 s"):
        assert filling.records


def test_a_learning_rate_that_a_script_chooses_is_not_known() -> None:
    script = WorkloadSpec(architecture="train.py", dataset="", script=("train.py",))
    configuration = trial("script", "own", workload=script)
    assert typed_value("lr", configuration) == ""
