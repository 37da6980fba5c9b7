"""`dpbench project`: reads the measurements, and answers by a law or by a simulation."""

from __future__ import annotations

from dpbench.analysis.projection.curve import ScalingCurve, scaling_curves
from dpbench.analysis.projection.law import project_by_law
from dpbench.analysis.projection.network import flat_network, load_topology
from dpbench.analysis.projection.simulation import project_by_simulation
from dpbench.analysis.published import is_table
from dpbench.analysis.rows import published_rows, summarize
from dpbench.analysis.sentences import environment_warnings
from dpbench.errors import UsageError
from dpbench.folders import Sweep, load_sweep
from dpbench.options.results import LATENCY_US, ProjectOptions
from dpbench.report.answer import Answer
from dpbench.report.answers.project import projection_answer


def project(options: ProjectOptions) -> Answer:
    """Project every curve; raises UsageError or FileError if none has an answer."""
    sweep = None
    if not is_table(options.path):
        sweep = load_sweep(options.path)
        rows = summarize(sweep.records)
    elif options.simulates:
        raise UsageError(
            f"{options.path}: a published table has no gradient trace to simulate steps from; "
            "leave out --topology and --bandwidth"
        )
    else:
        rows = published_rows(options.path)
    options.require_rows(rows, options.path)
    curves, notes = scaling_curves(rows, options.keeps)
    network = None
    if options.topology is not None:
        network = load_topology(options.topology)
    elif options.bandwidth is not None:
        network = flat_network(options.bandwidth, LATENCY_US)
    projected: list[ScalingCurve] = []
    for curve in curves:
        try:
            if network is not None:
                projected.append(project_by_simulation(curve, network, options.group_sizes))
            else:
                per_node = options.ranks_per_node or _gpus_per_node(curve, sweep)
                projected.append(project_by_law(curve, options.group_sizes, per_node))
        except UsageError as error:
            notes.append(str(error))
    if not projected:
        raise UsageError(f"{options.path}: {notes[0]}")
    points = [point for curve in projected for point in curve.points]
    if all(point.origin == "refused" for point in points):
        raise UsageError(f"nothing to show: {points[0].reason}")
    if sweep is not None:
        notes += (*sweep.warnings, *environment_warnings(sweep.records, sweep.environments))
    return projection_answer(
        projected,
        network=network.name if network else None,
        notes=[*dict.fromkeys(notes)],
        verbose=options.verbose,
    )


def _gpus_per_node(curve: ScalingCurve, sweep: Sweep | None) -> int | None:
    """GPUs of each host that measured, or as a published table states them; None for CPUs, where
    it is not known, or for hosts that differ."""
    configuration = curve.rows[-1].configuration
    counts = {row.published.gpus_per_node for row in curve.rows if row.published}
    if sweep is not None and configuration and configuration.devices[0].startswith("cuda"):
        counts = {len(machine.accelerators) for machine in sweep.environments.values()}
    return counts.pop() if len(counts) == 1 else None
