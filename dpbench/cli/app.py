"""The command `dpbench`: its commands, and how errors are printed."""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any

import typer

from dpbench.cli.command import Command, CommandGroup, Verbatim
from dpbench.cli.help import DESCRIBE_ALL, MORE_COMMANDS
from dpbench.cli.launch import launch
from dpbench.cli.measuring import check, comm, explain, sweep, train
from dpbench.cli.results import compare, plot, project, report
from dpbench.cli.setup import doctor, init, listing
from dpbench.errors import DpbenchError
from dpbench.messages import print_result, say

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of a disk that is full, over its quota or broken, or of a limit on file sizes."""
PROGRAM = "dpbench"
NEAR = 0.75
"""How like an unknown option a suggested one is, from 0 to 1."""
MAX_HELP_COLUMNS = 120
"""Columns of help on a wide terminal."""

SETTINGS: dict[Any, Any] = {
    "help_option_names": ("-h", "--help", DESCRIBE_ALL),
    "max_content_width": MAX_HELP_COLUMNS,
}
"""Settings of the group and of each command, as a command can be parsed without the group, too."""

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    cls=CommandGroup,
    context_settings=SETTINGS,
)
for heading, functions in (
    ("Commands", (explain, sweep, report, check)),
    (MORE_COMMANDS, (compare, init, listing, doctor, train, plot, comm, project, launch)),
):
    for function in functions:
        name = "list" if function is listing else function.__name__  # a function of Python's own
        kind = Verbatim if function is launch else Command
        make = app.command(name, cls=kind, rich_help_panel=heading, context_settings=SETTINGS)
        make(function)


def _print_version(wanted: bool) -> None:
    if wanted:
        from dpbench import __version__

        print_result(f"dpbench {__version__}\n")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Benchmark data-parallel PyTorch training: throughput, scaling efficiency and regressions."""


def run(arguments: Sequence[str]) -> int:
    """Runs one command and returns its exit status; errors that users cause take one line."""
    try:
        # typer's own `main` would print errors in its own way and end the process.
        group = commands()
        with group.make_context(PROGRAM, list(arguments) or ["--help"]) as context:
            result = group.invoke(context)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except typer.Exit as leaving:
        return leaving.exit_code
    except DpbenchError as error:
        message, status = str(error), error.exit_status
    except typer.TyperException as error:
        message, status = _usage_message(error, arguments), 2
    except KeyboardInterrupt:
        message, status = "interrupted", 130
    except OSError as error:
        if error.errno in NO_SPACE:
            message, status = f"cannot write the output: {error.strerror}", 1
        elif error.filename is not None:
            message, status = f"cannot use {error.filename}: {error.strerror}", 2
        else:
            raise
    say(message)
    return status


@cache
def commands() -> Any:
    """The group of all commands."""
    return typer.main.get_command(app)


def _usage_message(error: Any, arguments: Sequence[str]) -> str:
    """What typer could not parse, with the options that it may have been, and where to read on."""
    if possible := getattr(error, "possibilities", None):
        error.possibilities = get_close_matches(error.option_name, possible, cutoff=NEAR)
    message = " ".join(error.format_message().split())
    # typer knows the command of some errors only.
    command = f"{PROGRAM} {arguments[0]}" if arguments[0] in commands().commands else PROGRAM
    return f"{message}{'' if message.endswith(('.', '?')) else '.'} See {command} --help."
