"""The common part of `project`, `iso` and `what-if`: network, series, inputs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dpbench.analysis.communication.topology import THIS_MACHINE, Topology, load_topology
from dpbench.errors import UsageError
from dpbench.messages import warn
from dpbench.records.environment import environment_line
from dpbench.run.prediction.options import BatchSizeOptions, PredictionOptions
from dpbench.run.results import RowFilter
from dpbench.specs.trial import BUCKETED

if TYPE_CHECKING:
    from dpbench.analysis.communication.collective_cost import CollectiveCost
    from dpbench.analysis.configuration import ConfigurationSummary
    from dpbench.analysis.projection.series import Series
    from dpbench.analysis.provenance import PredictedRow
    from dpbench.records.collectives import CollectiveRecord
    from dpbench.report.prediction.projection import Projection
    from dpbench.store import StoredSweep


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """A network that is given as a topology, or the one that was measured."""

    records: tuple[CollectiveRecord, ...]
    """Measured collectives, also of networks that are not asked for."""
    topology: Topology | None

    @property
    def is_given(self) -> bool:
        return self.topology is not None

    @property
    def given_name(self) -> str | None:
        """The name of the network that is given; None where it is as measured."""
        return None if self.topology is None else self.topology.name

    def cost(self, backend: str) -> CollectiveCost:
        """The cost of collectives on a backend; raises UsageError where nothing tells.

        Of a topology a measured curve is taken only if both are of this backend: figures of a
        network do not say which of the backends were measured on it.
        """
        from dpbench.analysis.communication.collective_cost import measured_cost, network_cost
        from dpbench.analysis.communication.curves import curves

        measured = curves(self.records)
        if self.topology is not None:
            same = self.topology.backend == backend
            own = [curve for curve in measured if same and curve.backend == backend]
            return network_cost(self.topology, own)
        return measured_cost(measured, backend)


def read_network(
    folder: Path,
    backends: Sequence[str],
    group_size: int,
    *,
    comm: Path | None,
    topology: str | None,
) -> Network:
    """Raises UsageError if nothing is given and nothing was measured; `backends` and the largest
    group size of the sweep are for its remedy."""
    from dpbench.store import holds_collectives, load_collectives

    given = None if topology in (None, THIS_MACHINE) else load_topology(str(topology))
    records: tuple[CollectiveRecord, ...] = ()
    if comm is not None or holds_collectives(folder):
        stored = load_collectives(comm or folder)
        warn(*stored.warnings)
        records = stored.records
    elif given is None:
        raise UsageError(_no_collectives(folder, backends, group_size))
    return Network(records=records, topology=given)


def _no_collectives(folder: Path, backends: Sequence[str], group_size: int) -> str:
    place = folder.resolve()
    ranks = f" --gpus {group_size}" if group_size > 1 else ""
    elsewhere = place.parent.name != "results"
    parent = f" --results-dir {shlex.quote(str(place.parent))}" if elsewhere else ""
    return (
        f"{folder} holds no collectives; measure them with dpbench comm --backends "
        f"{','.join(backends)}{ranks} --name {shlex.quote(place.name)}{parent}, or give --comm "
        "DIR2 or --topology NAME"
    )


FURTHER = (8, 64, 1000, 10_000)
"""Group sizes besides the measured ones, unless others are asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """The requested series, ready to be simulated."""

    sweep: StoredSweep
    network: Network
    series: tuple[Series, ...]
    group_sizes: tuple[int, ...] | None
    machine: str
    """The machine of the traces, in words."""
    notes: tuple[str, ...]

    @property
    def premise(self) -> str | None:
        """Says which machine the computing is from, if the network is that of another."""
        given = self.network.topology
        if given is None:
            return None
        return (
            f"replicas compute, and vary, as on {self.machine}; only the network is that of "
            f"{given.name}"
        )

    def sizes(self, on_given: tuple[int, ...]) -> tuple[int, ...]:
        """The group sizes that were asked for, else `on_given` on a network that is given.

        On one that was measured the largest whose collectives were.
        """
        if self.group_sizes is not None:
            return self.group_sizes
        if self.network.is_given:
            return on_given
        curves = (curve for one in self.series for curve in one.network.curves)
        return (max(curve.group_size for curve in curves),)


def refuse_all(rows: Sequence[PredictedRow]) -> None:
    """Raises UsageError with the first reason if every row is refused."""
    if all(row.kind == "refused" for row in rows):
        raise UsageError(f"nothing to show: {rows[0].reason}")


def load_series(options: PredictionOptions) -> Loaded:
    """Raises UsageError or StoreError for what cannot be simulated."""
    from dpbench.analysis.comparisons.comparability import environment_notes
    from dpbench.analysis.projection.series import series_of
    from dpbench.analysis.summary import summarize
    from dpbench.store import load

    wanted = RowFilter(
        implementations=options.implementations or BUCKETED,
        backends=options.backends,
        batch_sizes=options.batch_sizes if isinstance(options, BatchSizeOptions) else None,
    )
    sweep = load(options.folder)
    rows = summarize(sweep.records)
    chosen = [row for row in rows if wanted.passes(row)]
    if not chosen:
        raise UsageError(_nothing(options.folder, rows))
    backends = list(dict.fromkeys(row.backend for row in chosen if row.backend))
    network = read_network(
        options.folder,
        backends,
        max(row.group_size for row in chosen),
        comm=options.comm,
        topology=options.topology,
    )
    series, notes = series_of(
        sweep.records,
        chosen,
        network_of=network.cost,
        network_is_given=network.is_given,
        collectives=network.records,
        replicas_per_node=None if network.topology is None else network.topology.ranks_per_node,
        cap_mb=options.cap_mb,
    )
    warn(*sweep.warnings)
    used = {name for record in sweep.records for name in record.environment_ids}
    return Loaded(
        sweep=sweep,
        network=network,
        series=series,
        group_sizes=options.group_sizes,
        machine=environment_line(sweep.environments, used),
        notes=(*notes, *environment_notes(sweep.records, sweep.environments)),
    )


def _nothing(folder: Path, rows: Sequence[ConfigurationSummary]) -> str:
    """Why there is no series, and which there are."""
    specs = [(row, row.configuration) for row in rows]
    having = [row for row, spec in specs if spec and spec.implementation in BUCKETED]
    if having:
        labels = dict.fromkeys(f"{row.series}, batch {row.batch_size}" for row in having)
        return f"{folder}: no such series; there are {'; '.join(labels)}"
    return (
        f"{folder}: no series that can be simulated, which are those of {', '.join(BUCKETED)}; "
        "measure one with dpbench sweep --implementations single,ddp,independent"
    )


def projections_of(loaded: Loaded) -> list[Projection]:
    """One for each series; raises UsageError if there is no number in any."""
    found = [_projection(loaded, one) for one in loaded.series]
    refuse_all([row for one in found for row in one.rows])
    return found


def _projection(loaded: Loaded, series: Series) -> Projection:
    from dpbench.analysis.projection.project import assumptions
    from dpbench.analysis.projection.project import project as projected
    from dpbench.report.prediction.projection import Projection

    sizes = loaded.group_sizes or (*series.measured_sizes, *FURTHER)
    return Projection(
        series=series,
        rows=projected(series, sizes),
        assumptions=assumptions(series, max(sizes), loaded.machine),
    )
