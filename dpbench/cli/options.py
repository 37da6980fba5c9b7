"""Commands whose options are the fields of a dataclass.

A field is `name: Annotated[type, Setting(…)] = default`. The signature of the command is made from
the fields, and the same dataclass is what a Python call and a config file fill.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from dpbench.cli import completion
from dpbench.settings import AUTO, Choice, Flag, PathName, Setting, Several, as_typed, settings_of

O = TypeVar("O")  # noqa: E741
Texts = Mapping[str, Any]
"""Options as they are typed, by the parameters of the command; None where one is left out."""


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
        return wrapper

    return with_options


def defaults_as_typed(options: type) -> dict[str, Any]:
    """What each parameter of the command is when nothing is typed."""
    return {one.name: one.default for one in _parameters(options)}


def from_texts(
    options: type[O],
    texts: Texts,
    notes: list[str],
    blaming: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext(),
) -> O:
    """Reads every option; `blaming` is entered with the name of each. Raises UsageError."""
    values: dict[str, Any] = {}
    declared = settings_of(options)  # type: ignore[arg-type]  # a class is hashable
    for field in fields(options):  # type: ignore[arg-type]
        text = texts[field.name]
        if text is None:
            values[field.name] = field.default
            continue
        with blaming(field.name):
            values[field.name] = declared[field.name].read(text, notes)
    return options(**values)


def from_values(options: type[O], given: Mapping[str, Any], notes: list[str]) -> O:
    """Checks the values of a Python call; None leaves an option out. Raises UsageError."""
    declared = settings_of(options)  # type: ignore[arg-type]  # a class is hashable
    return options(
        **{
            field.name: declared[field.name].check(given[field.name], notes)
            for field in fields(options)  # type: ignore[arg-type]
            if field.name in given
            and given[field.name] not in (None, AUTO)
            and given[field.name] is not field.default
        }
    )


def default_text(setting: Setting, default: Any) -> Any:
    """The default of an option as it would be typed; None where nothing typed means it."""
    if default in (None, AUTO):
        return None
    if isinstance(setting.kind, Flag) or isinstance(default, Path):
        return default
    return setting.typed_default or as_typed(default)


def _parameters(options: type) -> list[inspect.Parameter]:
    declared = settings_of(options)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=default_text(declared[field.name], field.default),
            annotation=_annotation(declared[field.name], field.default),
        )
        for field in fields(options)
    ]


def _annotation(setting: Setting, default: Any) -> Any:
    if not setting.options:
        kind = Path if isinstance(setting.kind, PathName) else str
        argument = typer.Argument(metavar=setting.metavar, help=setting.help, show_default=False)
        return Annotated[kind | None, argument]
    option = typer.Option(
        *setting.options,
        metavar=setting.metavar,
        autocompletion=_completion(setting),
        rich_help_panel=setting.panel,
        help=setting.help,
        hidden=setting.hidden,
        show_default=setting.default_text or True,
    )
    if isinstance(setting.kind, Flag):
        return Annotated[bool | None if default is AUTO else bool, option]
    if isinstance(setting.kind, Several):
        return Annotated[list[str] | None, option]
    return Annotated[Path | None if isinstance(setting.kind, PathName) else str | None, option]


def _completion(setting: Setting) -> Callable[[str], list[str]] | None:
    offered = setting.complete
    if not offered and isinstance(setting.kind, Choice):
        offered = setting.kind.canonical
    if not offered:
        return None

    def complete(incomplete: str) -> list[str]:
        names = offered() if callable(offered) else offered
        return (completion.listed if setting.several else completion.one)(incomplete, names)

    return complete
