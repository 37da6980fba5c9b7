"""One entry of a mapping is how rows show a setting, and which option has its values."""

from __future__ import annotations

from dataclasses import fields

from dpbench.options.sweep import SweepOptions
from dpbench.specs import AXES, TrialSpec, WorkloadSpec
from dpbench.specs.traits import OPTIONAL_SETTINGS


def test_every_axis_is_a_setting_of_a_row_and_an_option_of_a_sweep() -> None:
    of_rows = {one.name for spec in (TrialSpec, WorkloadSpec) for one in fields(spec)}
    assert {*AXES} <= of_rows
    assert {*OPTIONAL_SETTINGS} <= {*AXES}
    assert {axis.name for axis in AXES.values()} <= {*SweepOptions.model_fields}
    assert {"dtype", "prefetch", "threads_per_replica"} <= {*AXES}
