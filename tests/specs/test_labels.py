"""Names of configurations: what they tell always, and what only among others."""

from __future__ import annotations

from dataclasses import fields, replace

from dpbench.options.sweep import SweepOptions
from dpbench.specs import AXES, Configuration, Labels, WorkloadSpec, plain_label
from dpbench.specs.configuration import DEFAULTS
from dpbench.specs.traits import OPTIONAL_SETTINGS
from tests.builders import configuration

PLAIN = Labels()


def test_a_default_is_not_in_a_name_and_any_other_value_is() -> None:
    for name, axis in AXES.items():
        if DEFAULTS.get(name) is not None:
            assert axis.shown(DEFAULTS[name]) not in PLAIN.implementation(configuration())
    one = configuration(bucket_cap_mb=5.0, accumulate=2, prefetch=2, data_workers=1)
    one = replace(one, workload=replace(one.workload, dtype="bf16", optimizer="adamw"))
    assert PLAIN.implementation(one) == (
        "ddp(adamw, bf16, 2 micro-steps, 5 MiB, prefetch 2, 1 worker)"
    )
    one = configuration()
    other = replace(one, workload=replace(one.workload, lr=0.1, seed=3))
    assert PLAIN.implementation(other) == "ddp(lr 0.1, seed 3)"


def test_settings_without_a_default_are_in_names_where_several_differ_in_them() -> None:
    one = configuration(steps=1, threads=2)
    assert PLAIN.implementation(one) == "ddp"
    assert Labels.among([one, one.single]) == PLAIN
    names = Labels.among([one, configuration(steps=3, threads=1)])
    assert names.implementation(one) == "ddp(1 step, 2 threads)"
    assert names.implementation(one.single) == "single(1 step, 2 threads)"
    loading = configuration(prefetch=0)  # the default of a user's data
    assert PLAIN.implementation(loading) == "ddp"
    assert Labels.among([loading, configuration()]).implementation(loading) == "ddp(prefetch 0)"


def test_different_work_is_in_names_where_there_are_several_and_can_be_left_out() -> None:
    weak, strong = configuration(), configuration(scaling="strong")
    names = Labels.among([weak, strong])
    assert [names.work_label(one) for one in (weak, strong)] == ["weak", "strong"]
    assert names.implementation(strong) == "ddp(strong)"
    assert (PLAIN.work_label(strong), PLAIN.implementation(strong)) == ("", "ddp")


def test_groups_of_one_size_on_other_nodes_have_other_names() -> None:
    assert plain_label(configuration(replicas_by_node=(1, 1))) == "ddp/gloo ×2 (1+1 nodes), batch 4"
    five = configuration(group_size=5, replicas_by_node=(2, 2, 1))
    assert plain_label(five).endswith("(2+2+1 nodes), batch 4")
    eight = configuration(group_size=16, replicas_by_node=(2,) * 8)
    assert plain_label(eight) == "ddp/gloo ×16 (8×2 nodes), batch 4"


def test_every_axis_is_a_setting_of_a_configuration_and_an_option_of_a_sweep() -> None:
    settings = {one.name for spec in (Configuration, WorkloadSpec) for one in fields(spec)}
    assert {*AXES} <= settings
    assert {*OPTIONAL_SETTINGS} <= {*AXES}
    options = {axis.option for axis in AXES.values()}
    assert options <= {*SweepOptions.model_fields}
    assert {"dtype", "prefetch", "threads"} <= {*AXES}
