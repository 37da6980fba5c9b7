"""Commands whose options are the fields of a dataclass.

A field is `name: Annotated[type, Setting(…)] = default`. The signature of the command is made from
the fields, and the same dataclass is what a Python call and a config file fill.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from dpbench.errors import UsageError
from dpbench.run.results import RowFilter
from dpbench.specs.settings import (
    AUTO,
    Choice,
    Flag,
    PathName,
    Setting,
    Several,
    default_text,
    settings_of,
)

LATEST_RESULTS = "the latest in results/"
"""Default of commands that read results, if no folder is given."""


JsonFormat = Annotated[bool, typer.Option("--json", help="Same as --format json.")]


def format_name(format: str | None, *, json: bool) -> str | None:
    """The format that --format or --json names; raises UsageError if they contradict each other."""
    if json and format not in (None, "json"):
        raise UsageError(f"--json and --format {format} contradict each other; give one of them")
    return "json" if json else format


def command(options: type) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Gives `function(context, typed)` the signature that typer makes a command from."""

    def with_options(function: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(function)
        def wrapper(context: typer.Context, **typed: Any) -> int:
            return function(context, typed)

        parameters = [
            inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context),
            *_parameters(options),
        ]
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {one.name: one.annotation for one in parameters}
        del wrapper.__wrapped__  # typer would read the annotations of what is wrapped
        wrapper.options = options  # type: ignore[attr-defined]  # for help, see cli/help.py
        return wrapper

    return with_options


def _parameters(options: type) -> list[inspect.Parameter]:
    declared = settings_of(options)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty
            if field.default is MISSING
            else default_text(declared[field.name], field.default),
            annotation=_annotation(declared[field.name], field.default),
        )
        for field in fields(options)
    ]


def _annotation(setting: Setting, default: Any) -> Any:
    if not setting.options:
        kind = Path if isinstance(setting.kind, PathName) else str
        argument = typer.Argument(metavar=setting.metavar, help=setting.help, show_default=False)
        return Annotated[kind if default is MISSING else kind | None, argument]
    option = _typer_option(setting)
    if isinstance(setting.kind, Flag):
        return Annotated[bool | None if default is AUTO else bool, option]
    if isinstance(setting.kind, Several):
        return Annotated[list[str] | None, option]
    return Annotated[Path | None if isinstance(setting.kind, PathName) else str | None, option]


def _typer_option(setting: Setting) -> Any:
    return typer.Option(
        *setting.options,
        metavar=setting.metavar,
        autocompletion=_completion(setting),
        rich_help_panel=setting.panel,
        help=_with_values(setting),
        hidden=setting.hidden,
        show_default=setting.default_text or True,
    )


def _with_values(setting: Setting) -> str:
    """Help of the setting, with the names that it takes unless help or metavar have them."""
    names = () if callable(setting.complete) else tuple(setting.complete)
    if not names and isinstance(setting.kind, Choice):
        names = setting.kind.canonical
    if all(name in f"{setting.help} {setting.metavar}" for name in names):
        return setting.help
    return f"{setting.help} {'Any' if setting.several else 'One'} of: {', '.join(names)}."


def _completion(setting: Setting) -> Callable[[str], list[str]] | None:
    offered = setting.complete
    if not offered and isinstance(setting.kind, Choice):
        offered = setting.kind.canonical
    if not offered:
        return None

    def complete(incomplete: str) -> list[str]:
        names = offered() if callable(offered) else offered
        return (complete_list if setting.several else complete_one)(incomplete, names)

    return complete


def complete_one(incomplete: str, names: Iterable[str]) -> list[str]:
    """The names that begin like this."""
    return [name for name in names if name.startswith(incomplete)]


def complete_list(incomplete: str, names: Iterable[str]) -> list[str]:
    """The last name of a list with commas completed: "dp,torch-" to "dp,torch-ddp", …"""
    before, comma, last = incomplete.rpartition(",")
    taken = before.split(",")
    return [before + comma + name for name in complete_one(last, names) if name not in taken]


def _row_option(name: str) -> Any:
    return _typer_option(settings_of(RowFilter)[name])


OnlyImplementations = Annotated[str | None, _row_option("implementations")]
OnlyBackends = Annotated[str | None, _row_option("backends")]
OnlyGroupSizes = Annotated[str | None, _row_option("group_sizes")]
OnlyBatchSizes = Annotated[str | None, _row_option("batch_sizes")]
"""The four above are the options of a RowFilter, for commands that read results."""
