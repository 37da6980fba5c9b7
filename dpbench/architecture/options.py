"""Options of an architecture: the parameters of its factory, converted by their annotations."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

from dpbench.errors import UnknownName, UsageError

Parameter = inspect.Parameter
REQUIRED = "required"
_WORDS = {bool: "true or false", int: "int", float: "float", str: "text", type(None): "none"}
_TYPES = {kind.__name__: kind for kind in (bool, int, float, str)}
_CONSTANTS: Mapping[Any, Mapping[str, Any]] = {
    bool: {"true": True, "false": False},
    type(None): {"none": None},
}


@dataclass(frozen=True, slots=True)
class Option:
    """One option, in words."""

    name: str
    type: str
    """int, float, true or false, text, or the texts to choose from."""
    default: str
    """The default as you would type it; "required" if there is none."""

    def __str__(self) -> str:
        return f"{self.name}={self.default} ({self.type})"


def options_of(factory: Callable[..., Any]) -> tuple[Option, ...]:
    """The named options of a factory."""
    return tuple(
        Option(name, _words(_type(parameter)), _default(parameter))
        for name, parameter in _parameters(factory).items()
        if parameter.kind is not Parameter.VAR_KEYWORD
    )


def convert(given: Mapping[str, str], factory: Callable[..., Any], title: str) -> dict[str, Any]:
    """The typed options as keyword arguments of `factory`.

    Raises UsageError, which begins with `title`, if one is unknown, missing or of another type.
    """
    parameters = _parameters(factory)
    known = {n: p for n, p in parameters.items() if p.kind is not Parameter.VAR_KEYWORD}
    for option in given:
        if option not in known and len(known) == len(parameters):
            if not known:
                raise UsageError(f"{title}: got option {option!r}, but it has no options")
            raise UnknownName(f"option of {title}:", option, known)
    for name, parameter in known.items():
        if parameter.default is Parameter.empty and name not in given:
            raise UsageError(f"{title}: the option {name} is needed; add {name}=…")
    values = {}
    for option, text in given.items():
        kind = _type(known[option]) if option in known else None
        try:
            values[option] = _value(text, kind)
        except ValueError:
            raise UsageError(f"{title}: {option}: got {text!r}, expected {_words(kind)}") from None
    return values


def _parameters(factory: Callable[..., Any]) -> dict[str, Parameter]:
    """Parameters that can be given by name; none if Python cannot tell, as for a builtin."""
    try:
        signature = inspect.signature(factory, eval_str=True)
    except NameError:  # an annotation that exists for type checkers only
        signature = inspect.signature(factory)
    except ValueError:
        return {}
    positional = (Parameter.POSITIONAL_ONLY, Parameter.VAR_POSITIONAL)
    return {name: p for name, p in signature.parameters.items() if p.kind not in positional}


def _type(parameter: Parameter) -> Any:
    """The annotation, or else the type of the default; None if neither says anything."""
    annotation, default = parameter.annotation, parameter.default
    if isinstance(annotation, str):
        return _TYPES.get(annotation)
    if annotation is not Parameter.empty:
        return annotation
    return type(default) if type(default) in _TYPES.values() else None


def _alternatives(kind: Any) -> tuple[Any, ...]:
    if kind is None:
        return tuple(_TYPES.values())  # text comes last
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _value(text: str, kind: Any) -> Any:
    """Raises ValueError if no alternative fits."""
    for one in _alternatives(kind):
        if get_origin(one) is Literal:
            choices: Mapping[str, Any] = {str(choice): choice for choice in get_args(one)}
        else:
            choices = _CONSTANTS.get(one, {})
        spelled = text if get_origin(one) is Literal else text.lower()
        if spelled in choices:
            return choices[spelled]
        if one in (int, float, str):
            try:
                return one(text)
            except ValueError:
                continue
    raise ValueError(text)


def _words(kind: Any) -> str:
    if kind is None:
        return "any value"
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    if len(alternatives := _alternatives(kind)) > 1:
        return " or ".join(map(_words, alternatives))
    return _WORDS.get(kind) or f"{inspect.formatannotation(kind)}, which cannot be typed here"


def _default(parameter: Parameter) -> str:
    value = parameter.default
    if value is Parameter.empty:
        return REQUIRED
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
