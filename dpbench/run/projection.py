"""`dpbench project`: reads the measurements, and answers by a law or by a simulation."""

from __future__ import annotations

from collections.abc import Sequence

from dpbench.analysis.projection.law import project_by_law
from dpbench.analysis.projection.network import flat_network, load_topology
from dpbench.analysis.projection.series import Projection, Series, series_of
from dpbench.analysis.projection.simulation import project_by_simulation
from dpbench.analysis.published import is_table
from dpbench.analysis.rows import published_rows, summarize
from dpbench.analysis.sentences import environment_warnings
from dpbench.errors import UsageError
from dpbench.folders import Sweep, load_sweep
from dpbench.options.results import LATENCY_US, ProjectOptions
from dpbench.report.answer import Answer
from dpbench.report.answers.project import projection_answer

FURTHER_GROUP_SIZES = (8, 64, 1000)
"""Simulated group sizes besides the measured ones, unless others are asked for."""


def project(options: ProjectOptions) -> Answer:
    """Project every series; raises UsageError or FileError if no series has an answer."""
    sweep, all_series, left_out = _read_series(options)
    network = None
    if options.topology is not None:
        network = load_topology(options.topology)
    elif options.bandwidth is not None:
        network = flat_network(options.bandwidth, LATENCY_US)
    projections: list[Projection] = []
    for series in all_series:
        try:
            if network is not None:
                sizes = options.group_sizes or (*series.group_sizes, *FURTHER_GROUP_SIZES)
                projections.append(project_by_simulation(series, network, sizes))
            else:
                per_node = options.ranks_per_node or _gpus_per_node(series, sweep)
                projections.append(project_by_law(series, options.group_sizes, per_node))
        except UsageError as error:
            left_out.append(str(error))
    if not projections:
        raise UsageError(f"{options.path}: {left_out[0] if left_out else 'nothing to project'}")
    points = [point for projection in projections for point in projection.points]
    if all(point.origin == "refused" for point in points):
        raise UsageError(f"nothing to show: {points[0].reason}")
    notes = [*left_out]
    if sweep is not None:
        notes += (*sweep.warnings, *environment_warnings(sweep.records, sweep.environments))
    return projection_answer(projections, notes=[*dict.fromkeys(notes)], verbose=options.verbose)


def _read_series(options: ProjectOptions) -> tuple[Sweep | None, Sequence[Series], list[str]]:
    """The sweep, None for a published table; the series, and why others are left out."""
    if is_table(options.path):
        if options.simulates:
            raise UsageError(
                f"{options.path}: a published table has no gradient trace to simulate steps from; "
                "leave out --topology and --bandwidth"
            )
        sweep, rows = None, published_rows(options.path)
    else:
        sweep = load_sweep(options.path)
        rows = summarize(sweep.records)
    if rows and not any(map(options.keeps, rows)):
        raise UsageError(f"{options.path}: no such row; there are {options.choices(rows)}")
    try:
        series, left_out = series_of(rows, options.keeps)
    except UsageError as error:
        raise UsageError(f"{options.path}: {error}") from None
    return sweep, series, [*left_out]


def _gpus_per_node(series: Series, sweep: Sweep | None) -> int | None:
    """GPUs of each host that measured, or as a published table states them; None for CPUs, where
    it is not known, or for hosts that differ."""
    configuration = series.configuration
    counts = {row.published.gpus_per_node for row in series.rows if row.published}
    if sweep is not None and configuration and configuration.devices[0].startswith("cuda"):
        counts = {len(machine.accelerators) for machine in sweep.environments.values()}
    return counts.pop() if len(counts) == 1 else None
