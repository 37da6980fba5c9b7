"""dpbench buckets: which bucket size suits a model on these ranks."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpbench.cli.messages import say, warn
from dpbench.cli.values import comma_list, known_name, positive_int
from dpbench.errors import UsageError
from dpbench.specs import IMPLEMENTATIONS, PROCESS_GROUP_BACKENDS

if TYPE_CHECKING:
    from dpbench.analysis.communication.collective_cost import CollectiveCost
    from dpbench.analysis.communication.curve import CollectiveCurve
    from dpbench.analysis.configuration import ConfigurationSummary
    from dpbench.analysis.simulation.bucket_advice import BucketAdvice
    from dpbench.store import StoredSweep

BUCKETED = tuple(name for name, traits in IMPLEMENTATIONS.items() if traits.has_buckets)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Filter:
    """The rows to simulate; None for all."""

    implementations: tuple[str, ...] | None
    backends: tuple[str, ...] | None
    group_sizes: tuple[int, ...] | None
    batch_sizes: tuple[int, ...] | None

    def passes(self, row: ConfigurationSummary) -> bool:
        pairs = (
            (self.implementations, row.implementation.partition("(")[0]),
            (self.backends, row.backend),
            (self.group_sizes, row.group_size),
            (self.batch_sizes, row.batch_size),
        )
        return all(wanted is None or value in wanted for wanted, value in pairs)


def _only(what: str, name: str, metavar: str) -> Any:
    return typer.Option(
        f"--{name}s",
        f"--{name}",
        metavar=metavar,
        rich_help_panel="Which rows",
        help=f"Only these {what}.",
    )


def buckets(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A results folder of a sweep.")],
    comm: Annotated[
        Path | None,
        typer.Option(metavar="DIR2", help="Where dpbench comm measured collectives, if not DIR."),
    ] = None,
    topology: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE.toml", help="A network in the place of what was measured."),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="One object for programs instead of tables.")
    ] = False,
    implementations: Annotated[
        str | None, _only("implementations", "implementation", "A,B")
    ] = None,
    backends: Annotated[str | None, _only("backends", "backend", "A,B")] = None,
    group_sizes: Annotated[str | None, _only("numbers of replicas", "group-size", "N,N")] = None,
    batch_sizes: Annotated[str | None, _only("batch sizes", "batch-size", "N,N")] = None,
) -> None:
    """Simulate the step for bucket sizes from 1 MiB to one bucket, and recommend one.

    dpbench buckets results/real --implementation ddp --group-size 2

    It takes a sweep with group size 1 in it, where gradients are traced, and collectives.
    """
    notes: list[str] = []

    def listed(option: str, text: str | None, parse: Any) -> Any:
        return None if text is None else comma_list(option, text, parse, notes)

    wanted = _Filter(
        implementations=listed("--implementations", implementations, _known(BUCKETED)),
        backends=listed("--backends", backends, _known(PROCESS_GROUP_BACKENDS)),
        group_sizes=listed("--group-sizes", group_sizes, positive_int),
        batch_sizes=listed("--batch-sizes", batch_sizes, positive_int),
    )
    for note in notes:
        say(note)
    from dpbench.store import load

    sweep = load(folder)
    warn(*sweep.warnings)
    advice, remarks = _advise(sweep, wanted, _Network(folder=folder, comm=comm, topology=topology))
    from dpbench.report.buckets import render, to_json

    typer.echo(to_json(advice, remarks) if json else render(advice, remarks), nl=False)


def _known(names: Sequence[str]) -> Any:
    return lambda option, token: known_name(option, token, names)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Network:
    """Where the cost of collectives comes from."""

    folder: Path
    comm: Path | None
    topology: str | None

    def curves(self, backends: Sequence[str], group_size: int) -> tuple[CollectiveCurve, ...]:
        """Those that were measured; raises UsageError if there are none and no topology."""
        from dpbench.analysis.communication.curve import curves
        from dpbench.store import holds_collectives, load_collectives

        if self.comm is None and not holds_collectives(self.folder):
            if self.topology is not None:
                return ()
            raise UsageError(_no_collectives(self.folder, backends, group_size))
        stored = load_collectives(self.comm or self.folder)
        warn(*stored.warnings)
        return curves(stored.records)

    def cost(self, curves: Sequence[CollectiveCurve], backend: str) -> CollectiveCost:
        from dpbench.analysis.communication.collective_cost import measured_cost, network_cost
        from dpbench.analysis.communication.topology_files import load_topology

        if self.topology is None:
            return measured_cost(curves, backend)
        own = [curve for curve in curves if curve.backend == backend]
        return network_cost(load_topology(self.topology), own)


def _no_collectives(folder: Path, backends: Sequence[str], group_size: int) -> str:
    place = folder.resolve()
    parent = (
        "" if place.parent.name == "results" else f" --results-dir {shlex.quote(str(place.parent))}"
    )
    return (
        f"{folder} holds no collectives; measure them with dpbench comm --backends "
        f"{','.join(backends)} --gpus {group_size} --name {shlex.quote(place.name)}{parent}, or "
        "give --comm DIR2 or --topology NAME"
    )


def _advise(
    sweep: StoredSweep, wanted: _Filter, network: _Network
) -> tuple[list[BucketAdvice], list[str]]:
    """The advice on each row that can be simulated, and why the others cannot."""
    from dpbench.analysis.simulation.bucket_advice import advise_buckets
    from dpbench.analysis.simulation.inputs import simulation_inputs
    from dpbench.analysis.summary import summarize

    rows = [row for row in summarize(sweep.records) if _has_buckets(row)]
    chosen = [row for row in rows if wanted.passes(row)]
    if not chosen:
        raise UsageError(_nothing(sweep.folder, rows))
    backends = list(dict.fromkeys(row.backend for row in chosen if row.backend))
    curves = network.curves(backends, max(row.group_size for row in chosen))
    advice, refusals = [], []
    for row in chosen:
        assert row.configuration is not None
        assert row.backend is not None
        try:
            inputs = simulation_inputs(sweep.records, row.configuration)
            cost = network.cost(curves, row.backend)
            advice.append(advise_buckets(row, inputs, cost, curves))
        except UsageError as error:
            refusals.append(f"{row.label}: {error}")
    if not advice:
        raise UsageError(f"{sweep.folder}: {refusals[0]}")
    return advice, refusals


def _has_buckets(row: ConfigurationSummary) -> bool:
    trial = row.configuration
    return (
        trial is not None
        and trial.implementation in BUCKETED
        and trial.group_size > 1
        and row.throughput is not None
    )


def _nothing(folder: Path, rows: Sequence[ConfigurationSummary]) -> str:
    if rows:
        return f"{folder}: no such row; there are {'; '.join(row.label for row in rows)}"
    return (
        f"{folder}: no row with buckets and a speed, which takes {', '.join(BUCKETED)} on two "
        "ranks or more; measure one with dpbench sweep --implementations single,ddp --gpus 2"
    )
