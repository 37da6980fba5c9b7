"""Rules leave out the rows to which all their conditions apply, and spare the baseline."""

from __future__ import annotations

import pytest

from dpbench.run.sweep.grid import configurations, plan_trials
from dpbench.specs import TrialSpec
from dpbench.specs.sweep import Rule, condition
from tests.builders import sweep_spec

GRID = sweep_spec(repetitions=1)  # dp and ddp, groups 1 and 2, batches 4 and 8


def left_out(*rules: Rule) -> set[TrialSpec]:
    spec = sweep_spec(repetitions=1, exclude=rules)
    assert [*plan_trials(spec)] == [
        trial for trial in plan_trials(GRID) if trial in {*plan_trials(spec)}
    ]
    return {*plan_trials(GRID)} - {*plan_trials(spec)}


def test_all_conditions_of_a_rule_must_apply() -> None:
    gone = left_out(("implementation=dp", "group_size=2"))
    assert {(t.implementation, t.group_size, t.batch_size) for t in gone} == {
        ("dp", 2, 4),
        ("dp", 2, 8),
    }


def test_any_of_several_rules_is_enough() -> None:
    both = left_out(("implementation=dp",), ("group_size=2",))
    assert both == left_out(("implementation=dp",)) | left_out(("group_size=2",))


def test_the_baseline_stays_while_others_need_it() -> None:
    assert {t.implementation for t in left_out(("group_size=1",))} == {"dp", "ddp"}
    assert {t.implementation for t in left_out(("batch_size=8",))} == {"single", "dp", "ddp"}


def test_the_baseline_goes_where_a_rule_names_it() -> None:
    gone = left_out(("implementation=single", "batch_size=4"))
    assert [(t.implementation, t.batch_size) for t in gone] == [("single", 4)]


@pytest.mark.parametrize(
    ("field", "value", "word"),
    [
        ("bucket_cap_mb", None, "bucket_cap_mb=auto"),
        ("bucket_cap_mb", 25.0, "bucket_cap_mb=25"),
        ("bucket_cap_mb", 0.5, "bucket_cap_mb=0.5"),
        ("prefetch", None, "prefetch=resident"),
        ("prefetch", 0, "prefetch=0"),
        ("dtype", "bf16", "dtype=bf16"),
    ],
)
def test_conditions_have_one_spelling(field: str, value: object, word: str) -> None:
    assert condition(field, value) == word


def test_settings_of_a_row_are_conditions_too() -> None:
    axes = {"dtype": ("f32", "bf16"), "bucket_cap_mb": (1.0, 25.0)}
    spec = sweep_spec(repetitions=1, axes=axes, exclude=(("dtype=bf16", "group_size=2"),))
    assert {*configurations(spec)} - {*plan_trials(spec)} == {
        trial
        for trial in configurations(spec)
        if trial.workload.dtype == "bf16" and trial.group_size == 2
    }


def test_the_baseline_of_a_way_of_loading_goes_with_it() -> None:
    ways = {"prefetch": (None, 2)}
    spec = sweep_spec(repetitions=1, axes=ways, exclude=(("prefetch=2",),))
    assert {trial.prefetch for trial in plan_trials(spec)} == {None}
