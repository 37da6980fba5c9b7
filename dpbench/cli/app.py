"""The command `dpbench`: its commands, and how errors are printed."""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise, takewhile
from typing import Annotated, Any

import typer

from dpbench.cli.help import DESCRIBE_ALL, MORE_COMMANDS, Command, CommandGroup
from dpbench.cli.launch import Verbatim, launch
from dpbench.cli.measuring import check, comm, explain, sweep, train
from dpbench.cli.results import compare, plot, project, report
from dpbench.cli.script import ScriptCommand
from dpbench.cli.setup import doctor, init, listing
from dpbench.errors import DpbenchError
from dpbench.messages import print_result, say
from dpbench.options.model import OptionError

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of a disk that is full, over its quota or broken, or of a limit on file sizes."""
PROGRAM = "dpbench"
EXTRA_WORD = re.compile(r"Got unexpected extra argument(?:s|\(s\))? \(([^ )]+)")
MAX_HELP_COLUMNS = 120
"""Columns of help on a wide terminal."""

USUAL_COMMANDS = "Commands"
CONTEXT_SETTINGS: dict[Any, Any] = {
    "help_option_names": ("-h", "--help", DESCRIBE_ALL),
    "max_content_width": MAX_HELP_COLUMNS,
}

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    cls=CommandGroup,
    context_settings=CONTEXT_SETTINGS,
)


def _add(panel: str, function: Callable[..., Any], name: str | None = None, **more: Any) -> None:
    kind = {"cls": Command} | more
    app.command(name=name, rich_help_panel=panel, context_settings=CONTEXT_SETTINGS, **kind)(
        function
    )


_add(USUAL_COMMANDS, explain, cls=ScriptCommand)
_add(USUAL_COMMANDS, sweep, cls=ScriptCommand)
_add(USUAL_COMMANDS, report)
_add(USUAL_COMMANDS, check, cls=ScriptCommand)
_add(MORE_COMMANDS, compare)
_add(MORE_COMMANDS, init)
_add(MORE_COMMANDS, listing, "list")
_add(MORE_COMMANDS, doctor)
_add(MORE_COMMANDS, train)
_add(MORE_COMMANDS, plot)
_add(MORE_COMMANDS, comm)
_add(MORE_COMMANDS, project)
_add(MORE_COMMANDS, launch, cls=Verbatim)


def _print_version(wanted: bool) -> None:
    if wanted:
        from dpbench import __version__

        print_result(f"dpbench {__version__}\n")
        raise typer.Exit


@app.callback(no_args_is_help=True, invoke_without_command=True)
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
        result = _invoke(arguments)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except OptionError as error:
        message, status = f"{_typed_name(error, arguments)}{error.problem}", error.exit_status
    except DpbenchError as error:
        message, status = str(error), error.exit_status
    except (KeyboardInterrupt, typer.Abort):
        message, status = "interrupted", 130
    except OSError as error:
        if error.errno in NO_SPACE:
            message, status = f"cannot write the output: {error.strerror}", 1
        elif error.filename is not None:
            message, status = f"cannot use {error.filename}: {error.strerror}", 2
        else:
            raise
    except Exception as error:
        # typer vendors click and exports no common base: its errors are known by their shape.
        if not (hasattr(error, "format_message") and hasattr(error, "exit_code")):
            raise
        message, status = _usage_message(error, arguments), 2
    say(message)
    return status


def _invoke(arguments: Sequence[str]) -> Any:
    """Calls the command; typer's `main` would print errors in its own way and end the process."""
    try:
        group = commands()
        words = list(arguments) or ["--help"]
        with group.make_context(PROGRAM, words) as context:
            return group.invoke(context)
    except typer.Exit as leaving:
        return leaving.exit_code


@cache
def commands() -> Any:
    """The group of all commands."""
    return typer.main.get_command(app)


def _typed_name(error: OptionError, arguments: Sequence[str]) -> str:
    """The name that was typed for the option, before the words of a script."""
    command = commands().commands.get(arguments[0])
    params = [param for param in command.params if param.name == error.field] if command else []
    names = [name for param in params for name in (*param.opts, *param.secondary_opts)]
    # The value of an option may end in .py, too.
    own = takewhile(
        lambda pair: pair[1] != "--" and (pair[0][:1] == "-" or not pair[1].endswith(".py")),
        pairwise(arguments),
    )
    typed = (word.partition("=")[0] for _, word in own)
    return next((word for word in typed if word in names), error.name)


def _usage_message(error: Any, arguments: Sequence[str]) -> str:
    message = " ".join(error.format_message().split())
    # An option without its value is found before its command has a context.
    is_command = arguments[0] in commands().commands
    command = f"{PROGRAM} {arguments[0]}" if is_command else PROGRAM
    if extra := EXTRA_WORD.match(message):
        message = f"unexpected argument {extra[1]}"
        if extra[1].endswith(".py"):
            message += f"; {PROGRAM} explain {extra[1]} measures a training script as it is"
    return f"{message}{'' if message.endswith(('.', '?')) else '.'} See {command} --help."
