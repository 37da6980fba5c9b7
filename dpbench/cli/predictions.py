"""`dpbench project`, `iso` and `what-if`: predictions from a sweep."""

from __future__ import annotations

from functools import partial

import typer

from dpbench.cli.chart_files import draw_into
from dpbench.cli.options import command
from dpbench.messages import say
from dpbench.run.prediction.options import IsoOptions, ProjectOptions, WhatIfOptions
from dpbench.run.prediction.projecting import load_series, projections_of, refuse_all
from dpbench.specs.settings import O, Texts, from_texts

ISO_SIZES = (8, 64, 1000)
CHANGED_SIZES = (64,)
"""Group sizes on a network that is given, if none are."""


@command(ProjectOptions)
def project(context: typer.Context, typed: Texts) -> int:
    """Project step time and throughput to any number of replicas.

    dpbench project results/real --topology h100-nvswitch-ndr --group-sizes 8,64

    Needs a sweep that includes group size 1, and the collectives of dpbench comm.
    """
    options = _read(ProjectOptions, typed)
    loaded = load_series(options)
    from dpbench.report.prediction.projection import answer

    found = projections_of(loaded)
    text = answer(
        found, premise=loaded.premise, notes=loaded.notes, verbose=options.verbose
    ).render(as_json=options.json)
    typer.echo(text, nl=False)
    if options.output is not None:
        from dpbench.report.charts.projection import file_name, projection
        from dpbench.report.charts.source import ChartSource

        chart = {file_name(loaded.network.given_name): partial(projection, found)}
        draw_into(options.output, chart, ChartSource.of_sweep(loaded.sweep))
    return 0


@command(IsoOptions)
def iso(context: typer.Context, typed: Texts) -> int:
    """Find the smallest batch size that keeps a scaling efficiency.

    dpbench iso results/real --efficiency 90% --topology tcp-25gbe

    Needs a sweep that includes group size 1, at two batch sizes or more.
    """
    options = _read(IsoOptions, typed)
    loaded = load_series(options)
    from dpbench.analysis.projection.iso import families, iso_batches
    from dpbench.analysis.projection.project import assumptions
    from dpbench.report.prediction.iso import IsoAnswer, answer

    sizes = loaded.sizes(ISO_SIZES)
    answers = [
        IsoAnswer(
            family=family,
            rows=iso_batches(family, sizes, options.efficiency),
            assumptions=tuple(
                (one.label, assumptions(one, max(sizes), loaded.machine)) for one in family.members
            ),
        )
        for family in families(loaded.series)
    ]
    refuse_all([row for one in answers for row in one.rows])
    found = answer(
        answers,
        options.efficiency,
        premise=loaded.premise,
        notes=loaded.notes,
        verbose=options.verbose,
    )
    typer.echo(found.render(as_json=options.json), nl=False)
    return 0


@command(WhatIfOptions)
def what_if(context: typer.Context, typed: Texts) -> int:
    """Simulate changes, such as a faster network or smaller gradients.

    dpbench what-if results/real --topology tcp-25gbe --change bandwidth=2 --change gradients=bf16
    """
    options = _read(WhatIfOptions, typed)
    from dpbench.analysis.projection.what_if import DEFAULTS, Change, parse_change

    changes: dict[str, Change] = {}
    for text in options.change or DEFAULTS:
        one = parse_change(text)
        if changes.setdefault(one.words, one) is not one:
            say(f"--change: {text} is listed twice; it counts once")
    loaded = load_series(options)
    from dpbench.analysis.projection.project import assumptions
    from dpbench.analysis.projection.what_if import what_if as changed
    from dpbench.report.prediction.what_if import Answers, answer

    sizes = loaded.sizes(CHANGED_SIZES)
    answers = [
        Answers(
            series=one,
            found=changed(one, sizes, [*changes.values()]),
            assumptions=assumptions(one, max(sizes), loaded.machine),
        )
        for one in loaded.series
    ]
    refuse_all([row for one in answers for row in one.found])
    found = answer(answers, premise=loaded.premise, notes=loaded.notes, verbose=options.verbose)
    typer.echo(found.render(as_json=options.json), nl=False)
    return 0


def _read(options: type[O], typed: Texts) -> O:
    """Reads the options of a command, and says its notes."""
    notes: list[str] = []
    read = from_texts(options, typed, notes)
    say(*notes)
    return read
