"""Specifications of sweeps, their trials and trainings, and the settings that rows differ by."""

from dpbench.specs.axes import (
    AXES,
    COMM_HOOKS,
    COMPILE_MODES,
    DTYPES,
    OPTIMIZERS,
    SCALINGS,
    SETTINGS,
)
from dpbench.specs.sweep import SweepSpec
from dpbench.specs.trial import (
    BASELINE,
    COMPARED,
    DEFAULTS,
    MOST_REPETITIONS,
    Scaling,
    TrialSettings,
    TrialSpec,
    series_name,
)
from dpbench.specs.workload import WORKLOAD_SETTINGS, WorkloadSpec

__all__ = [
    "AXES",
    "BASELINE",
    "COMM_HOOKS",
    "COMPARED",
    "COMPILE_MODES",
    "DEFAULTS",
    "DTYPES",
    "MOST_REPETITIONS",
    "OPTIMIZERS",
    "SCALINGS",
    "SETTINGS",
    "WORKLOAD_SETTINGS",
    "Scaling",
    "SweepSpec",
    "TrialSettings",
    "TrialSpec",
    "WorkloadSpec",
    "series_name",
]
