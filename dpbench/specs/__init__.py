"""Specifications of sweeps, their trials and trainings, and the settings that rows differ by."""

from dpbench.specs.axes import AXES as AXES
from dpbench.specs.axes import COMM_HOOKS as COMM_HOOKS
from dpbench.specs.axes import COMPILE_MODES as COMPILE_MODES
from dpbench.specs.axes import OPTIMIZERS as OPTIMIZERS
from dpbench.specs.labels import Labels as Labels
from dpbench.specs.labels import plain_label as plain_label
from dpbench.specs.labels import series_name as series_name
from dpbench.specs.sweep import SweepSpec as SweepSpec
from dpbench.specs.trial import DEFAULTS as DEFAULTS
from dpbench.specs.trial import MOST_REPETITIONS as MOST_REPETITIONS
from dpbench.specs.trial import RunSpec as RunSpec
from dpbench.specs.trial import TrialSpec as TrialSpec
from dpbench.specs.workload import WORKLOAD_SETTINGS as WORKLOAD_SETTINGS
from dpbench.specs.workload import WorkloadSpec as WorkloadSpec
