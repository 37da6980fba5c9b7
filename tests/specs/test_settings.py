"""One declaration of a setting is what parsing, checking, naming and storing go by."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

from dpbench.errors import UsageError
from dpbench.specs import (
    AXES,
    DEFAULTS,
    SETTINGS,
    WORKLOAD_SETTINGS,
    SweepSpec,
    TrialSpec,
    Variant,
)
from dpbench.specs.settings import AUTO, CountOr, NameWithOptions, Setting, Switch, settings_of
from dpbench.specs.traits import OPTIONAL_SETTINGS
from tests.builders import sweep_spec
from tests.builders import trial_spec as trial

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", [name for name in SETTINGS if name in DEFAULTS])
def test_the_default_of_a_setting_is_named_by_no_row(name: str) -> None:
    setting = SETTINGS[name]
    if setting.shown and DEFAULTS[name] is not None:
        assert setting.shown(DEFAULTS[name]) not in trial().implementation_label


@pytest.mark.parametrize(
    "name",
    [n for n in AXES if n in DEFAULTS and n != "prefetch" and not AXES[n].optional],
)
def test_the_default_of_an_axis_reads_back_from_its_text(name: str) -> None:
    setting = AXES[name]
    assert setting.parse(setting.option, setting.text(DEFAULTS[name])) == DEFAULTS[name]


def test_every_axis_is_a_field_of_a_variant_that_keeps_to_the_sweep_by_default() -> None:
    assert {field.name for field in fields(Variant)} == {*AXES}
    assert Variant().of(trial()) == trial()


def test_settings_of_a_trial_are_those_of_a_sweep() -> None:
    assert settings_of(TrialSpec).keys() == settings_of(SweepSpec).keys()
    assert {*OPTIONAL_SETTINGS} <= {*settings_of(TrialSpec)}


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
    spec = sweep_spec(
        timed_steps=4,
        threads_per_replica=1,
        variants=(
            Variant(timed_steps=8, threads_per_replica=1),
            Variant(timed_steps=4, threads_per_replica=2),
        ),
    )
    assert spec.values_of("timed_steps") == (8, 4)
    assert spec.values_of("threads_per_replica") == (1, 2)
    assert spec.values_of("warmup_steps") == (spec.warmup_steps,)
    assert spec.with_comparisons.compared == ("timed_steps", "threads_per_replica")
    assert replace(spec, variants=()).with_comparisons.compared == ()


def test_a_word_may_stand_in_place_of_a_count() -> None:
    assert [CountOr("auto").parse("--steps", text) for text in ("auto", " 7")] == ["auto", 7]
    with pytest.raises(UsageError, match=r"--steps: 'x' is not a positive integer.*, or auto$"):
        CountOr("auto").parse("--steps", "x")


def test_a_switch_is_yes_or_no_and_auto_is_a_value_of_its_own() -> None:
    assert [Switch().parse("--x", text) for text in ("yes", "no")] == [True, False]
    assert repr(AUTO) == "AUTO"


def test_workload_settings_are_those_of_the_workload() -> None:
    assert {*WORKLOAD_SETTINGS} == {*settings_of(type(trial().workload))}


def test_rows_of_other_learning_rates_and_seeds_have_other_names() -> None:
    one = trial()
    other = replace(one, workload=replace(one.workload, learning_rate=0.1, seed=3))
    assert other.implementation_label == "ddp(lr 0.1, seed 3)"
    assert other.baseline.workload == other.workload


def test_a_comma_before_an_option_begins_no_name() -> None:
    setting = Setting(options=("--arch",), kind=NameWithOptions(), several=True, help="")
    notes: list[str] = []
    expected = ("mlp:width=4,depth=3", "mnist_cnn", "./a=b/model.py:make:n=1", "gpt:size=small")
    text = "mlp:width=4,depth=3,mnist_cnn, ./a=b/model.py:make:n=1,gpt:size=small"
    assert setting.read(text, notes) == expected
    assert setting.read("mlp:width=4, depth=3,mlp", notes) == ("mlp:width=4, depth=3", "mlp")
    assert setting.check([*expected], notes) == expected
    assert setting.check("gpt", notes) == ("gpt",)
    assert notes == []
    assert setting.read("mlp,gpt,mlp", notes) == ("mlp", "gpt")
    assert notes == ["--arch: mlp is listed twice; it counts once"]
