"""`dpbench import`: what another tool printed, as a table of dpbench's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpbench.errors import UnknownName, UsageError
from dpbench.files import write_text
from dpbench.messages import say
from dpbench.report.progress.terminal import table_width

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dpbench.analysis.published import PublishedSpeed

TOOLS = ("nccl-tests", "horovod", "torch-ddp")


def import_(
    tool: Annotated[
        str,
        typer.Argument(
            metavar="TOOL", help="Program that printed the log: nccl-tests, horovod or torch-ddp."
        ),
    ],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Log file.")],
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="NAME",
            show_default="simple",
            help="Format: csv, json or jsonl; for speeds also those of 'dpbench report'.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also write a CSV file, which 'dpbench report' and 'dpbench fit' read.",
        ),
    ] = None,
    collective: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Collective that nccl-tests measured, if the log does not say."
        ),
    ] = None,
) -> None:
    """Read the output of nccl-tests, Horovod's benchmark or torch-ddp's.

    dpbench import nccl-tests all_reduce.log

    dpbench import horovod run.log --output horovod.csv
    """
    if tool not in TOOLS:
        raise UnknownName("tool", tool, TOOLS)
    if collective is not None and tool != "nccl-tests":
        raise UsageError(f"--collective {collective}: {tool} measures none; leave it out")
    if output is not None and output.suffix.lower() != ".csv":
        raise UsageError(f"--output {output}: expected a file name that ends in .csv")
    if tool == "nccl-tests":
        text, csv_text, aside = _collectives(file, format, collective)
    else:
        text, csv_text, aside = _speeds(tool, file, format)
    typer.echo(text, nl=False)
    for note in aside:
        typer.echo(note, err=True)
    if output is not None:
        write_text(output, csv_text)
        say(f"written to {output}")


def _collectives(
    file: Path, format: str | None, collective: str | None
) -> tuple[str, str, Sequence[str]]:
    """The text that was asked for, that of the CSV file, and what has no room in the first."""
    from dpbench.analysis.imported.nccl_tests import read_nccl_tests
    from dpbench.report.export.formats import WRITERS
    from dpbench.report.imported import answer, write

    if format not in (None, "simple", *WRITERS):
        raise UnknownName("format of collectives", format or "", ("simple", *WRITERS))
    found = read_nccl_tests(file, collective)
    notes = tuple(dict.fromkeys(note for one in found for note in one.notes))
    if format in WRITERS:
        return write(found, format or ""), write(found, "csv"), notes
    return answer(found).text, write(found, "csv"), ()


def _speeds(tool: str, file: Path, format: str | None) -> tuple[str, str, Sequence[str]]:
    from dpbench.analysis.imported.horovod import read_horovod
    from dpbench.analysis.imported.torch_ddp import read_torch_ddp
    from dpbench.analysis.published import summaries, to_csv
    from dpbench.report.tables import render

    readers = {"horovod": read_horovod, "torch-ddp": read_torch_ddp}
    speeds: tuple[PublishedSpeed, ...] = readers[tool](file)
    table = render(summaries(speeds), format=format, width=table_width())
    return table.text, to_csv(speeds), table.notes_aside
