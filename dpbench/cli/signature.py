"""The signature of a command, which typer makes its options from, out of a model of options."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from dpbench.messages import as_typed, print_result
from dpbench.options.model import Options, Panel, options_of, reserved_names
from dpbench.options.reading import read_options

if TYPE_CHECKING:
    from dpbench.report.answer import Answer

M = TypeVar("M", bound=Options)


def command(model: type[M]) -> Callable[[Callable[[M], Answer | str | None]], Callable[..., Any]]:
    """Give `function(options)` the signature that typer makes a command from, print the Answer or
    text that it returns, and return the exit status."""

    def decorate(function: Callable[[M], Answer | str | None]) -> Callable[..., Any]:
        def wrapper(**typed: Any) -> Any:
            given = {name: value for name, value in typed.items() if value is not None}
            options = read_options(model, given)
            result = function(options)
            if result is None or isinstance(result, str):
                print_result(result or "")
                return 0
            print_result(result.render(as_json=getattr(options, "as_json", False)))
            return result.exit_status

        texts = model.model_construct().model_dump(mode="json")
        parameters = [_parameter(model, name, texts.get(name)) for name in options_of(model)]
        wrapper.reserved = reserved_names(model)  # type: ignore[attr-defined]
        wrapper.__name__, wrapper.__doc__ = function.__name__, function.__doc__
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return wrapper

    return decorate


def _parameter(model: type[Options], name: str, default_text: Any) -> inspect.Parameter:
    """An option as typer reads it from the signature of a command; `default_text` is its default as
    it is typed."""
    field = model.model_fields[name]
    info = options_of(model)[name]
    is_flag = field.annotation is bool
    is_on = field.default is True
    kind: Any = list[str] if info.repeated else bool if is_flag else str
    default = ("on" if is_on else None) if is_flag else default_text
    first = f"{info.name}/--no{info.name[1:]}" if is_on else info.name
    names = () if info.argument else (first, *info.names[1:])
    declaration = (typer.Argument if info.argument else typer.Option)(
        *names,
        metavar=info.metavar,
        help=info.help,
        rich_help_panel=info.panel,
        hidden=info.panel is Panel.HIDDEN,
        show_default=info.usual or (False if default in (None, []) else as_typed(default)),
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if field.is_required() else None,
        annotation=Annotated[kind if field.is_required() else kind | None, declaration],
    )
