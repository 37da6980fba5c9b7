"""The fields about a step's use of the host: processor time, page faults."""

from __future__ import annotations

from dpbench.analysis.fields.field import SweepField, stored
from dpbench.analysis.fields.measured import if_completed, mean_over
from dpbench.analysis.resources import cpu_seconds_per_step, page_faults_per_step

USAGE: tuple[SweepField, ...] = (
    SweepField(
        key="page_faults_per_step",
        meaning="Minor page faults of a rank's process in a step of the timed window, the mean "
        "over ranks: memory that the C library gave back to the kernel and takes again.",
        header="Page faults/step",
        wrapped="Page\nfaults\n/step",
        style="significant",
        row=stored("page_faults_per_step"),
        run=if_completed(page_faults_per_step),
        over=mean_over(page_faults_per_step, "page faults"),
    ),
    SweepField(
        key="cpu_seconds_per_step",
        meaning="Processor time of a rank's process in a step of the timed window, all its threads "
        "together, the mean over ranks; without the processes that load its data.",
        unit="s",
        header="CPU time/step",
        wrapped="CPU time\n/step",
        style="time",
        row=stored("cpu_seconds_per_step"),
        run=if_completed(cpu_seconds_per_step),
        over=mean_over(cpu_seconds_per_step, "s"),
    ),
)
