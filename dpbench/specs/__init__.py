"""Specifications of sweeps, their trials and trainings, and the settings that rows differ by."""

from dpbench.specs.sweep import AS_THE_SWEEP, SweepSpec
from dpbench.specs.trial import (
    ALLOCATORS,
    AXES,
    BASELINE,
    COMM_HOOKS,
    COMPARED,
    DEFAULTS,
    KEEP,
    MOST_REPETITIONS,
    SCALINGS,
    SETTINGS,
    SYSTEM,
    Scaling,
    TrialSettings,
    TrialSpec,
    Variant,
    series_name,
)
from dpbench.specs.workload import (
    COMPILE_MODES,
    DTYPES,
    OPTIMIZERS,
    WORKLOAD_SETTINGS,
    WorkloadSpec,
)

__all__ = [
    "ALLOCATORS",
    "AS_THE_SWEEP",
    "AXES",
    "BASELINE",
    "COMM_HOOKS",
    "COMPARED",
    "COMPILE_MODES",
    "DEFAULTS",
    "DTYPES",
    "KEEP",
    "MOST_REPETITIONS",
    "OPTIMIZERS",
    "SCALINGS",
    "SETTINGS",
    "SYSTEM",
    "WORKLOAD_SETTINGS",
    "Scaling",
    "SweepSpec",
    "TrialSettings",
    "TrialSpec",
    "Variant",
    "WorkloadSpec",
    "series_name",
]
