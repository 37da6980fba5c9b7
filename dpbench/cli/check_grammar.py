"""The options of `dpbench check` that are its own: how each is spelt and what its help says.

Some are options of `dpbench sweep` that do less here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpbench.cli.sweep_grammar import OUTPUT as RESULTS
from dpbench.cli.sweep_grammar import SETTINGS

VERDICT = "Verdict"
MEASURING = "Measuring, without CANDIDATE"
OUTPUT = "Output"

Candidate = Annotated[
    str | None,
    typer.Argument(
        metavar="CANDIDATE",
        help="A results folder, or a part of it as in dpbench compare. Without it the "
        "candidate is measured now.",
        show_default=False,
    ),
]
Baseline = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="A results folder to compare with; without CANDIDATE its sweep is run again.",
    ),
]
Against = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="An implementation to compare with, measured in turn with the candidate: for "
        "shared machines.",
    ),
]
Tolerance = Annotated[
    str | None,
    typer.Option(
        metavar="P%",
        rich_help_panel=VERDICT,
        help="How much worse is no regression.",
        show_default="pyproject.toml, else 3%",
    ),
]
Metric = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME[=P%]",
        rich_help_panel=VERDICT,
        help="images_per_second, efficiency, exposed_communication_seconds, peak_memory_bytes, "
        "…; several, each with a tolerance of its own if it has one.",
        show_default="pyproject.toml, else images_per_second",
    ),
]
Strict = Annotated[
    bool | None,
    typer.Option(
        "--strict/--not-strict",
        rich_help_panel=VERDICT,
        help="Inconclusive is a failure too.",
        show_default="pyproject.toml, else not-strict",
    ),
]
Force = Annotated[
    bool,
    typer.Option(
        "--force", rich_help_panel=VERDICT, help="Compare in spite of different environments."
    ),
]
Repetitions = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        rich_help_panel=MEASURING,
        help="Fresh runs of every row to begin with; more while it is inconclusive, which is "
        "looked at up to 5 times.",
        show_default="pyproject.toml, else 5",
    ),
]
Budget = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        rich_help_panel=MEASURING,
        help="When to stop adding runs.",
        show_default="pyproject.toml, else 5m",
    ),
]
BatchSizes = Annotated[
    str,
    typer.Option("--batch-sizes", "--batch-size", metavar="N,N", help="Samples per replica."),
]
Name = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        rich_help_panel=RESULTS,
        help="Folder of what is measured.",
        show_default="the time and the command",
    ),
]
Steps = Annotated[
    str,
    typer.Option(metavar="N", rich_help_panel=SETTINGS, help="Timed steps, exactly."),
]
AsJson = Annotated[
    bool, typer.Option("--json", rich_help_panel=OUTPUT, help="The verdict as JSON on stdout.")
]
Junit = Annotated[
    Path | None,
    typer.Option(metavar="FILE", rich_help_panel=OUTPUT, help="Write JUnit XML."),
]
BenchmarkAction = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", rich_help_panel=OUTPUT, help="Write JSON for github-action-benchmark."
    ),
]
Markdown = Annotated[
    Path | None,
    typer.Option(metavar="FILE", rich_help_panel=OUTPUT, help="Write Markdown."),
]
Github = Annotated[
    bool,
    typer.Option(
        "--github", rich_help_panel=OUTPUT, help="Append Markdown to $GITHUB_STEP_SUMMARY."
    ),
]
