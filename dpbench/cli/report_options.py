"""The options of `dpbench report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpbench.errors import UsageError


def folder_of(text: str) -> Path:
    """Refuses what an unset variable leaves, which would be the current folder."""
    if not text:
        raise UsageError("--output: expected a folder, got nothing; '.' is the current one")
    return Path(text)


Paths = Annotated[
    list[Path],
    typer.Argument(metavar="PATH", help="Results folders, or .csv files of results."),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="NAME",
        show_default="simple",
        help="csv, json, jsonl, markdown, latex, html, or any other layout of tabulate.",
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(
        "--columns",
        metavar="A,B,C",
        help="Columns to show, by their JSON keys; 'seed' for torch-ddp's four.",
    ),
]
Charts = Annotated[
    bool, typer.Option("--charts/--no-charts", help="Draw the charts (SVG, and in the page).")
]
Json = Annotated[bool, typer.Option("--json", help="The same as --format json.")]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        metavar="DIR",
        parser=folder_of,
        show_default="PATH/report; of a CSV file, nowhere",
        help="Where page, tables and charts go.",
    ),
]
Open = Annotated[bool, typer.Option("--open", help="Open the page in the browser.")]
Serve = Annotated[
    bool,
    typer.Option(
        "--serve", help="Watch a running sweep: a page on this machine that refreshes itself."
    ),
]
Port = Annotated[
    int | None,
    typer.Option("--port", metavar="N", show_default="a free one", help="Where --serve listens."),
]
