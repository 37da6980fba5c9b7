"""Options of an architecture: the parameters of its factory, converted by their annotations."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from dpbench.errors import UnknownName, UsageError

REQUIRED = "required"
_WORDS = {bool: "true or false", int: "int", float: "float", str: "text", type(None): "none"}
_UNTYPED = bool | int | float | str
"""The type of an option whose parameter has neither an annotation nor a default of such a
type."""


class FactoryOption(NamedTuple):
    """One option, in words."""

    name: str
    type: str
    """int, float, true or false, text, or the texts to choose from."""
    default: str
    """The default as you would type it; "required" if there is none."""

    def __str__(self) -> str:
        return f"{self.name}={self.default} ({self.type})"


def factory_options(factory: Callable[..., Any]) -> tuple[FactoryOption, ...]:
    """The named options of a factory."""
    options = []
    for name, parameter in _parameters(factory)[0].items():
        default = parameter.default
        text = REQUIRED if default is inspect.Parameter.empty else str(default)
        as_typed = text.lower() if default is None or isinstance(default, bool) else text
        options.append(FactoryOption(name, _words(_type(parameter)), as_typed))
    return tuple(options)


def convert(given: Mapping[str, str], factory: Callable[..., Any], title: str) -> dict[str, Any]:
    """The typed options as keyword arguments of `factory`.

    Raises UsageError, which begins with `title`, if one is unknown, missing or of another type.
    """
    known, takes_others = _parameters(factory)
    for option in given:
        if option not in known and not takes_others:
            if not known:
                raise UsageError(f"{title}: got the option {option}, but it takes none")
            raise UnknownName(f"option of {title}", option, known)
    for option, parameter in known.items():
        if parameter.default is inspect.Parameter.empty and option not in given:
            raise UsageError(f"{title}: {option} has no default; expected the option {option}=…")
    values: dict[str, Any] = {}
    for option, text in given.items():
        kind = _type(known[option]) if option in known else _UNTYPED
        if text.lower() == "none" and type(None) in get_args(kind):
            values[option] = None
            continue
        try:
            values[option] = _value(text, kind)
        except ValidationError:
            raise UsageError(f"{title}: {option}: got {text!r}, expected {_words(kind)}") from None
    return values


def _value(text: str, kind: Any) -> Any:
    if kind != _UNTYPED:
        return TypeAdapter(kind).validate_python(text)
    for one in (int, float):
        try:
            return one(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)


def _parameters(factory: Callable[..., Any]) -> tuple[dict[str, inspect.Parameter], bool]:
    """Parameters that can be given by name, none if Python cannot tell, as for a builtin; and
    whether it takes others too."""
    try:
        signature = inspect.signature(factory, eval_str=True)
    except NameError:  # an annotation that exists for type checkers only
        signature = inspect.signature(factory)
    except ValueError:
        return {}, False
    named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    every = signature.parameters.values()
    takes_others = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in every)
    return {one.name: one for one in every if one.kind in named}, takes_others


def _type(parameter: inspect.Parameter) -> Any:
    """The annotation, or else the type of the default."""
    annotation = parameter.annotation
    if annotation is not inspect.Parameter.empty and not isinstance(annotation, str):
        return annotation
    kind = type(parameter.default)
    return kind if kind in (bool, int, float, str) else _UNTYPED


def _words(kind: Any) -> str:
    if kind == _UNTYPED:
        return "any value"
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(map(_words, get_args(kind)))
    return _WORDS.get(kind) or inspect.formatannotation(kind)
