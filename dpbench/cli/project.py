"""`dpbench project`: what other group sizes, networks or batches would give."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from dpbench.cli.chart_files import draw_into
from dpbench.cli.options import OnlyBackends, OnlyBatchSizes, OnlyImplementations
from dpbench.errors import UsageError
from dpbench.messages import say
from dpbench.run.projection import DEFAULT_LATENCY_US, ProjectOptions
from dpbench.run.projection import project as projected
from dpbench.run.results import parse_filter
from dpbench.values import bounded_float, comma_list, percentage, positive_int

NETWORK_PANEL, QUESTION_PANEL = "Network", "Questions"
LARGEST_GROUP = 10_000_000


def project(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH", help="Results folder, or a CSV file of group sizes and speeds."
        ),
    ],
    group_sizes: Annotated[
        str | None,
        typer.Option(
            "--group-sizes",
            "--group-size",
            metavar="N,N",
            show_default="the measured ones, 2 and 4 times the largest; on a network 8, 64, 1000",
            help="Numbers of replicas.",
        ),
    ] = None,
    implementations: OnlyImplementations = None,
    backends: OnlyBackends = None,
    batch_sizes: OnlyBatchSizes = None,
    topology: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE.toml",
            rich_help_panel=NETWORK_PANEL,
            help="Simulate on a network: h100-nvswitch-ndr, a TOML file, or measured (by comm).",
        ),
    ] = None,
    bandwidth: Annotated[
        str | None,
        typer.Option(
            metavar="GB/s",
            rich_help_panel=NETWORK_PANEL,
            help="Simulate on a network with this bandwidth per replica.",
        ),
    ] = None,
    latency: Annotated[
        str | None,
        typer.Option(
            metavar="µs",
            show_default=f"{DEFAULT_LATENCY_US:g}",
            rich_help_panel=NETWORK_PANEL,
            help="Latency per message, with --bandwidth.",
        ),
    ] = None,
    comm: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            show_default="PATH",
            rich_help_panel=NETWORK_PANEL,
            help="Results folder of dpbench comm with the measured collectives.",
        ),
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=NUMBER",
            rich_help_panel=QUESTION_PANEL,
            help="Simulate a change, e.g. bandwidth=2 or accumulate=4; may be repeated.",
        ),
    ] = None,
    efficiency: Annotated[
        str | None,
        typer.Option(
            metavar="P%",
            rich_help_panel=QUESTION_PANEL,
            help="Find the smallest batch size that keeps this scaling efficiency.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder to draw the projection into (PNG and SVG)."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also print what is assumed.")
    ] = False,
) -> None:
    """Project speed to other group sizes, networks and batch sizes.

    dpbench project results/scaling --group-sizes 8,16

    dpbench project results/scaling --topology h100-nvswitch-ndr --change bandwidth=2

    Without a network, a law through the measured group sizes predicts up to four times the
    largest. With one, steps are simulated.
    """
    notes: list[str] = []
    options = ProjectOptions(
        path=path,
        group_sizes=None
        if group_sizes is None
        else tuple(comma_list("--group-sizes", group_sizes, _group_size, notes)),
        wanted=parse_filter(
            implementations=implementations,
            backends=backends,
            group_sizes=None,
            batch_sizes=batch_sizes,
        ),
        topology=topology,
        bandwidth=None
        if bandwidth is None
        else bounded_float("--bandwidth", bandwidth, least=1e-6, most=1e6),
        latency=None if latency is None else bounded_float("--latency", latency, least=0, most=1e6),
        comm=comm,
        changes=tuple(change or ()),
        efficiency=None
        if efficiency is None
        else percentage("--efficiency", efficiency, examples="90% or 99.5%"),
    )
    say(*notes)
    found = projected(options)
    from dpbench.report.projection import answer

    text = answer(found.projections, notes=found.notes, verbose=verbose).render(as_json=json)
    typer.echo(text, nl=False)
    if output is not None:
        from dpbench.report.charts.projection import projection
        from dpbench.report.charts.source import ChartSource

        source = ChartSource(rows=(), environments={}, name=path.name)
        if found.sweep is not None:
            source = ChartSource.of_sweep(found.sweep)
        draw_into(output, {"projection": partial(projection, found.projections)}, source)


def _group_size(option: str, token: str) -> int:
    size = positive_int(option, token)
    if size > LARGEST_GROUP:
        raise UsageError(f"{option}: {size:,} is too large; expected at most {LARGEST_GROUP:,}")
    return size
