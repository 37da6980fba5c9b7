"""Specifications of sweeps, their trials, and of trainings."""

from dpbench.specs.axes import AXES as AXES
from dpbench.specs.axes import GRID as GRID
from dpbench.specs.configuration import Configuration as Configuration
from dpbench.specs.labels import IDENTITY as IDENTITY
from dpbench.specs.labels import Labels as Labels
from dpbench.specs.labels import plain_label as plain_label
from dpbench.specs.labels import row_name as row_name
from dpbench.specs.labels import series_name as series_name
from dpbench.specs.parallel import ParallelSpec as ParallelSpec
from dpbench.specs.sweep import SweepSpec as SweepSpec
from dpbench.specs.workload import WorkloadSpec as WorkloadSpec
