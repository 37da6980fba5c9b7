"""Options that the commands which read results share."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dpbench.errors import UsageError
from dpbench.options.bridge import option_names, options_of
from dpbench.options.shared import RowFilter

LATEST_RESULTS = "the latest in results/"
"""Default of commands that read results, if no folder is given."""
JsonFormat = Annotated[bool, typer.Option("--json", help="Same as --format json.")]


def format_name(format: str | None, *, json: bool) -> str | None:
    """The format that --format or --json names; raises UsageError if they contradict each other."""
    if json and format not in (None, "json"):
        raise UsageError(f"--json and --format {format} contradict each other; give one of them")
    return "json" if json else format


def _row_option(name: str) -> Any:
    option = options_of(RowFilter)[name]
    return typer.Option(
        *option_names(option, name),
        metavar=option.metavar,
        help=option.help,
        rich_help_panel=option.panel,
    )


OnlyImplementations = Annotated[str | None, _row_option("implementations")]
OnlyBackends = Annotated[str | None, _row_option("backends")]
OnlyGroupSizes = Annotated[str | None, _row_option("group_sizes")]
OnlyBatchSizes = Annotated[str | None, _row_option("batch_sizes")]
"""The four above are the options of a RowFilter."""
