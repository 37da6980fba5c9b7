"""One entry of a mapping is how rows show a setting, and which option has its values."""

from __future__ import annotations

from dataclasses import fields, replace

from dpbench.options.sweep import SweepOptions
from dpbench.specs import AXES, DEFAULTS, SETTINGS, TrialSettings, WorkloadSpec
from dpbench.specs.traits import OPTIONAL_SETTINGS
from tests.builders import sweep_spec
from tests.builders import trial_spec as trial


def test_every_axis_is_a_setting_of_a_row_and_an_option_of_a_sweep() -> None:
    of_rows = {one.name for spec in (TrialSettings, WorkloadSpec) for one in fields(spec)}
    assert {*AXES} <= of_rows
    assert {*OPTIONAL_SETTINGS} <= {*AXES}
    assert {axis.name for axis in AXES.values()} <= {*SweepOptions.model_fields}
    assert {"dtype", "prefetch", "threads_per_replica"} <= {*AXES}


def test_the_default_of_a_setting_is_named_by_no_row() -> None:
    for name, axis in SETTINGS.items():
        if DEFAULTS.get(name) is not None:
            assert axis.shown(DEFAULTS[name]) not in trial().implementation_label


def test_a_row_is_named_by_every_setting_that_is_not_at_its_default() -> None:
    one = trial(bucket_cap_mb=5.0, accumulation_steps=2, prefetch=2, data_workers=1)
    one = replace(one, workload=replace(one.workload, dtype="bf16", optimizer="adamw"))
    assert one.implementation_label == (
        "ddp(bf16, adamw, 2 micro-steps, 5 MiB, prefetch 2, 1 worker)"
    )


def test_what_every_trial_stores_is_named_where_the_sweep_has_several_values_of_it() -> None:
    several = {"warmup_steps": 5, "timed_steps": 1, "threads_per_replica": 2}
    assert not {*several} & {*DEFAULTS}
    one = trial(**several)
    assert one.implementation_label == "ddp"
    both = replace(one, compared=("threads_per_replica", "timed_steps"))
    assert both.implementation_label == "ddp(1 step, 2 threads)"
    assert replace(one, compared=("warmup_steps",)).implementation_label == "ddp(5 warmup)"
    assert both.baseline.implementation_label == "single(1 step, 2 threads)"


def test_what_a_sweep_compares_is_in_the_names_of_its_rows_alone() -> None:
    spec = sweep_spec(axes={"timed_steps": (8, 4), "threads_per_replica": (1, 2)})
    assert spec.values_of("timed_steps") == (8, 4)
    assert spec.values_of("warmup_steps") == (spec.warmup_steps,)
    assert spec.with_comparisons.compared == ("timed_steps", "threads_per_replica")
    assert replace(spec, axes={}).with_comparisons.compared == ()
    assert [*spec.variants()][:2] == [
        {"timed_steps": 8, "threads_per_replica": 1},
        {"timed_steps": 8, "threads_per_replica": 2},
    ]


def test_rows_of_other_learning_rates_and_seeds_have_other_names() -> None:
    one = trial()
    other = replace(one, workload=replace(one.workload, learning_rate=0.1, seed=3))
    assert other.implementation_label == "ddp(lr 0.1, seed 3)"
    assert other.baseline.workload == other.workload
