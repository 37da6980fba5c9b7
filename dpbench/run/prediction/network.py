"""Sources for the cost of collectives: --comm, --topology and --nccl-log."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dpbench.errors import UsageError
from dpbench.messages import warn
from dpbench.run.prediction.options import THIS_MACHINE

if TYPE_CHECKING:
    from dpbench.analysis.communication.collective_cost import CollectiveCost
    from dpbench.analysis.communication.topology import Topology
    from dpbench.collectives import CollectiveRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """A network that is given (a topology, NCCL's log), or the one that was measured."""

    records: tuple[CollectiveRecord, ...]
    """Measured collectives, also of networks that are not asked for."""
    topology: Topology | None
    log: str | None
    """Text of NCCL's log."""

    @property
    def is_given(self) -> bool:
        return self.topology is not None or self.log is not None

    @property
    def given_name(self) -> str | None:
        """The name of the network that is given; None where it is as measured."""
        if self.log is not None:
            return "nccl log"
        return None if self.topology is None else self.topology.name

    def cost(self, backend: str) -> CollectiveCost:
        """The cost of collectives on a backend; raises UsageError where nothing tells.

        Of a topology a measured curve is taken only if both are of this backend: figures of a
        network do not say which of the backends were measured on it.
        """
        from dpbench.analysis.communication.collective_cost import measured_cost, network_cost
        from dpbench.analysis.communication.nccl import nccl_cost
        from dpbench.analysis.communication.timings import curves

        if self.log is not None:
            return nccl_cost(self.log)
        measured = curves(self.records)
        if self.topology is not None:
            same = self.topology.backend == backend
            own = [curve for curve in measured if same and curve.backend == backend]
            return network_cost(self.topology.of_backend(backend), own)
        return measured_cost(measured, backend)


def read_network(
    folder: Path,
    backends: Sequence[str],
    group_size: int,
    *,
    comm: Path | None,
    topology: str | None,
    nccl_log: Path | None,
) -> Network:
    """Raises UsageError if nothing is given and nothing was measured; `backends` and the largest
    group size of the sweep are for its remedy."""
    from dpbench.analysis.communication.topology import load_topology
    from dpbench.store import holds_collectives, load_collectives

    if topology is not None and nccl_log is not None:
        raise UsageError("--topology and --nccl-log are two networks; give one of them")
    given = None if topology in (None, THIS_MACHINE) else load_topology(str(topology))
    log = None if nccl_log is None else _read(nccl_log)
    records: tuple[CollectiveRecord, ...] = ()
    if comm is not None or holds_collectives(folder):
        stored = load_collectives(comm or folder)
        warn(*stored.warnings)
        records = stored.records
    elif given is None and log is None:
        raise UsageError(_no_collectives(folder, backends, group_size))
    return Network(records=records, topology=given, log=log)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"--nccl-log {path}: cannot be read ({error.strerror})") from error


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
