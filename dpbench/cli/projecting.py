"""What `project`, `iso` and `what-if` have in common: which series, and what they are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from dpbench.cli.messages import say, warn
from dpbench.cli.network import Network, read_network
from dpbench.cli.values import comma_list, known_name, positive_float, positive_int
from dpbench.errors import UsageError
from dpbench.specs import IMPLEMENTATIONS, PROCESS_GROUP_BACKENDS

if TYPE_CHECKING:
    from dpbench.analysis.configuration import ConfigurationSummary
    from dpbench.analysis.projection.series import Series
    from dpbench.store import StoredSweep

T = TypeVar("T")

BUCKETED = tuple(name for name, traits in IMPLEMENTATIONS.items() if traits.has_buckets)
LARGEST_GROUP = 10_000_000
"""More replicas nobody has; their product with a batch would no longer be exact."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """The options that all three commands take, as they were typed."""

    folder: Path
    comm: Path | None
    topology: str | None
    nccl_log: Path | None
    implementations: str | None
    backends: str | None
    batch_sizes: str | None
    group_sizes: str | None
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


def load_series(request: Request) -> Loaded:
    """Raises UsageError or StoreError for what cannot be simulated."""
    wanted = _Wanted.of(request)
    cap = request.bucket_cap_mb
    cap_mb = None if cap is None else positive_float("--bucket-cap-mb", cap)
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
    used = {record.environment_id for record in sweep.records}
    return Loaded(
        sweep=sweep,
        network=network,
        series=series,
        group_sizes=wanted.group_sizes,
        machine=environment_line(sweep.environments, used),
        notes=(*notes, *environment_notes(sweep.records, sweep.environments)),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Wanted:
    """The series to simulate; None for all."""

    implementations: tuple[str, ...] | None
    backends: tuple[str, ...] | None
    batch_sizes: tuple[int, ...] | None
    group_sizes: tuple[int, ...] | None

    @classmethod
    def of(cls, request: Request) -> _Wanted:
        notes: list[str] = []

        def listed(
            option: str, text: str | None, parse: Callable[[str, str], T]
        ) -> tuple[T, ...] | None:
            return None if text is None else comma_list(option, text, parse, notes)

        wanted = cls(
            implementations=listed("--implementations", request.implementations, _known(BUCKETED)),
            backends=listed("--backends", request.backends, _known(PROCESS_GROUP_BACKENDS)),
            batch_sizes=listed("--batch-sizes", request.batch_sizes, positive_int),
            group_sizes=listed("--group-sizes", request.group_sizes, _group_size),
        )
        for note in notes:
            say(note)
        return wanted

    def passes(self, row: ConfigurationSummary) -> bool:
        name = None if row.configuration is None else row.configuration.implementation
        pairs = (
            (self.implementations or BUCKETED, name),
            (self.backends, row.backend),
            (self.batch_sizes, row.batch_size),
        )
        return all(wanted is None or value in wanted for wanted, value in pairs)


def _group_size(option: str, token: str) -> int:
    size = positive_int(option, token)
    if size > LARGEST_GROUP:
        raise UsageError(f"{option}: {size} is too large; expected at most {LARGEST_GROUP:,}")
    return size


def _known(names: Sequence[str]) -> Callable[[str, str], str]:
    return lambda option, token: known_name(option, token, names)


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
