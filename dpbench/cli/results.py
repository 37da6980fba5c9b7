"""The commands that read results: `report`, `plot`, `compare` and `project`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpbench.cli.command import command
from dpbench.options.results import CompareOptions, PlotOptions, ProjectOptions, ReportOptions
from dpbench.report.charts.kinds import CHARTS

if TYPE_CHECKING:
    from dpbench.report.answer import Answer


@command(ReportOptions)
def report(options: ReportOptions) -> Answer | str | None:
    """Show results as a table, and write an HTML page with charts.

    dpbench report results/demo --open

    dpbench report results/demo --output table.csv

    With --format or a file for rows, it writes rows and no page. Options that choose rows apply to
    the printed output; the page always has all rows.
    """
    from dpbench.run import reporting

    return reporting.report(options)


@command(PlotOptions)
def plot(options: PlotOptions) -> str:
    """Draw charts of results as PNG, SVG or PDF.

    dpbench plot throughput,efficiency results/demo --format pdf

    dpbench plot implementations results/demo --group-sizes 2 --output beside-torch

    Charts: {charts}. 'dpbench list charts' describes them.
    """
    from dpbench.run import plotting

    return plotting.plot(options)


plot.__doc__ = (plot.__doc__ or "").format(charts=", ".join(CHARTS))


@command(CompareOptions)
def compare(options: CompareOptions) -> Answer:
    """Compare sweeps, or parts of one: which is faster, by how much.

    dpbench compare results/before results/after

    dpbench compare results/x:implementation=torch-ddp results/x:implementation=ddp

    Exit status: 0 compared, whatever the result (dpbench check is the gate); 2 usage; 5 the two
    cannot be compared.
    """
    from dpbench.run import comparing

    return comparing.compare(options)


@command(ProjectOptions)
def project(options: ProjectOptions) -> Answer:
    """Project speed to other group sizes and networks.

    dpbench project results/scaling --group-sizes 8,16

    dpbench project results/scaling --topology h100-nvswitch-ndr

    Without a network, a scaling law predicts up to four times the largest measured group size.
    With a network, steps are simulated.
    """
    from dpbench.run import projection

    return projection.project(options)
