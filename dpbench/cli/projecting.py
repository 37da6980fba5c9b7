"""What `project`, `iso`, `what-if` and `buckets` have in common: series and their inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dpbench.cli.messages import say, warn
from dpbench.cli.network import Network, read_network
from dpbench.cli.row_filter import RowFilter, listed
from dpbench.errors import UsageError
from dpbench.traits import BUCKETED, IMPLEMENTATIONS, PROCESS_GROUP_BACKENDS
from dpbench.values import bounded_float, known_name, positive_int

if TYPE_CHECKING:
    from dpbench.analysis.configuration import ConfigurationSummary
    from dpbench.analysis.projection.series import Series
    from dpbench.analysis.provenance import PredictedRow
    from dpbench.store import StoredSweep

SMALLEST_CAP_MB = 0.001
LARGEST_CAP_MB = 1_000_000.0
LARGEST_GROUP = 10_000_000
"""More replicas nobody has; their product with a batch would no longer be exact."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """The options that these commands take, as they were typed."""

    folder: Path
    comm: Path | None = None
    topology: str | None = None
    nccl_log: Path | None = None
    implementations: str | None = None
    backends: str | None = None
    batch_sizes: str | None = None
    group_sizes: str | None = None
    bucket_cap_mb: str | None = None
    target_loss: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """What was asked for, ready to be simulated."""

    sweep: StoredSweep
    network: Network
    series: tuple[Series, ...]
    group_sizes: tuple[int, ...] | None
    machine: str
    """What the traces were taken on, in words."""
    notes: tuple[str, ...]

    @property
    def premise(self) -> str | None:
        """Where computing is of one machine and the network of another, which it is."""
        if not self.network.is_given:
            return None
        given = self.network.topology
        name = "the NCCL log" if given is None else given.name
        return (
            f"replicas compute, and vary, as on {self.machine}; only the network is that of {name}"
        )

    def sizes(self, on_given: tuple[int, ...], measured: tuple[int, ...] = ()) -> tuple[int, ...]:
        """The group sizes that were asked for, else `on_given` on a network that is given.

        On one that was measured `measured`, else the largest whose collectives were.
        """
        if self.group_sizes is not None:
            return self.group_sizes
        if self.network.is_given:
            return on_given
        curves = (curve for one in self.series for curve in one.network.curves)
        return measured or (max(curve.group_size for curve in curves),)


def refuse_all(rows: Sequence[PredictedRow]) -> None:
    """Raises UsageError with the first reason if every row is refused."""
    if all(row.kind == "refused" for row in rows):
        raise UsageError(f"nothing to show: {rows[0].reason}")


def load_series(request: Request) -> Loaded:
    """Raises UsageError or StoreError for what cannot be simulated."""
    wanted, group_sizes = _wanted(request)
    cap = request.bucket_cap_mb
    cap_mb = (
        None
        if cap is None
        else bounded_float("--bucket-cap-mb", cap, least=SMALLEST_CAP_MB, most=LARGEST_CAP_MB)
    )
    from dpbench.analysis.environments import environment_notes
    from dpbench.analysis.projection.series import series_of
    from dpbench.analysis.summary import summarize
    from dpbench.report.charts.source import environment_line
    from dpbench.store import load

    sweep = load(request.folder)
    rows = summarize(sweep.records, target_loss=request.target_loss)
    chosen = [row for row in rows if wanted.passes(row)]
    if not chosen:
        raise UsageError(_nothing(request.folder, rows))
    backends = list(dict.fromkeys(row.backend for row in chosen if row.backend))
    network = read_network(
        request.folder,
        backends,
        max(row.group_size for row in chosen),
        comm=request.comm,
        topology=request.topology,
        nccl_log=request.nccl_log,
    )
    series, notes = series_of(
        sweep.records,
        chosen,
        network_of=network.cost,
        network_is_given=network.is_given,
        collectives=network.records,
        replicas_per_node=None if network.topology is None else network.topology.ranks_per_node,
        bucket_cap_mb=cap_mb,
    )
    warn(*sweep.warnings)
    used = {name for record in sweep.records for name in record.environment_ids}
    return Loaded(
        sweep=sweep,
        network=network,
        series=series,
        group_sizes=group_sizes,
        machine=environment_line(sweep.environments, used),
        notes=(*notes, *environment_notes(sweep.records, sweep.environments)),
    )


def _wanted(request: Request) -> tuple[RowFilter, tuple[int, ...] | None]:
    """The series, and the group sizes to simulate them at, which need not be measured ones."""
    notes: list[str] = []
    names = listed("--implementations", request.implementations, _simulated, notes)
    wanted = RowFilter(
        implementations=names or BUCKETED,
        backends=listed("--backends", request.backends, _known(PROCESS_GROUP_BACKENDS), notes),
        group_sizes=None,
        batch_sizes=listed("--batch-sizes", request.batch_sizes, positive_int, notes),
    )
    sizes = listed("--group-sizes", request.group_sizes, group_size, notes)
    for note in notes:
        say(note)
    return wanted, sizes


def group_size(option: str, token: str) -> int:
    """A number of replicas."""
    size = positive_int(option, token)
    if size > LARGEST_GROUP:
        raise UsageError(f"{option}: {size:,} is too large; expected at most {LARGEST_GROUP:,}")
    return size


def _known(names: Sequence[str]) -> Callable[[str, str], str]:
    return lambda option, token: known_name(option, token, names)


def _simulated(option: str, token: str) -> str:
    name = known_name(option, token, IMPLEMENTATIONS)
    if name not in BUCKETED:
        raise UsageError(
            f"{option}: {name} is not simulated, which {', '.join(BUCKETED)} are; dpbench fit "
            "describes it by a law"
        )
    return name


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
