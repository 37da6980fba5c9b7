"""The options of `dpbench comm` that are its own: how each is spelt and what its help says."""

from __future__ import annotations

from typing import Annotated

import typer

from dpbench.cli.sweep_grammar import OUTPUT

MEASURED = "What is measured"

Collectives = Annotated[
    str,
    typer.Option(
        "--collectives",
        "--collective",
        metavar="A,B",
        rich_help_panel=MEASURED,
        help="Any of all_reduce, broadcast, all_gather, reduce_scatter; or all.",
    ),
]
Backends = Annotated[
    str | None,
    typer.Option(
        "--backends",
        "--backend",
        metavar="A,B",
        rich_help_panel=MEASURED,
        help="gloo, nccl, shm.",
        show_default="all that work here",
    ),
]
GroupSizes = Annotated[
    str | None,
    typer.Option(
        "--group-sizes",
        "--group-size",
        metavar="N,N",
        rich_help_panel=MEASURED,
        help="Numbers of ranks.",
        show_default="2, 4, 8, … up to --gpus",
    ),
]
Sizes = Annotated[
    str,
    typer.Option(
        metavar="FROM-TO|A,B",
        rich_help_panel=MEASURED,
        help="Message sizes: a range, each 4 times the last (x2 at its end: twice), or a list. "
        "B, KB, MB, GB, KiB, MiB, GiB.",
    ),
]
OverlapSizes = Annotated[
    str | None,
    typer.Option(
        metavar="A,B|none",
        rich_help_panel=MEASURED,
        help="Sizes of all_reduce also measured while every rank computes.",
        show_default="64KiB,1MiB,25MiB, those within --sizes",
    ),
]
BucketSizes = Annotated[
    str | None,
    typer.Option(
        metavar="A,B|none",
        rich_help_panel=MEASURED,
        help="Sizes of all_reduce also measured as a bucket of gradients in a step: copied, "
        "and with cold caches.",
        show_default="those of --sizes from 4KB to 100MB",
    ),
]
Samples = Annotated[
    str,
    typer.Option(
        metavar="N",
        rich_help_panel=MEASURED,
        help="Timed samples of each size, a millisecond each at least; large messages get "
        "fewer, but 5.",
    ),
]
Repetitions = Annotated[
    str, typer.Option(metavar="N", rich_help_panel=MEASURED, help="Fresh runs of everything.")
]
TimeLimit = Annotated[
    str,
    typer.Option(
        metavar="TIME",
        rich_help_panel=MEASURED,
        help="Per collective, backend, group size and repetition: seconds, or 90s, 5m.",
    ),
]
Name = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        rich_help_panel=OUTPUT,
        help="Folder of the results. That of a sweep gets the collectives added; what has "
        "completed in it already is not measured again.",
        show_default="the time and collectives",
    ),
]
Charts = Annotated[
    bool,
    typer.Option("--charts/--no-charts", rich_help_panel=OUTPUT, help="Draw them (PNG and SVG)."),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", rich_help_panel=OUTPUT, help="Print what would be measured."),
]
JsonData = Annotated[
    bool,
    typer.Option("--json", rich_help_panel=OUTPUT, help="JSON on stdout, all else on stderr."),
]
