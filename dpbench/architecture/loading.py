"""Finds an architecture by its name, with options that the parameters of its factory allow."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

from dpbench.architecture import sources
from dpbench.architecture.naming import INPUT_SHAPE, Name, input_shape, parse_name
from dpbench.architecture.protocol import Architecture, missing_members
from dpbench.architecture.user_errors import user_errors_in
from dpbench.errors import UnknownName, UsageError

REQUIRED = "required"
_BY_NAME = {"bool": bool, "int": int, "float": float, "str": str}
_GUESSED = (bool, int, float)
"""Types tried for an option of unknown type, before text."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option, in words."""

    name: str
    type: str
    """int, float, true or false, text, or the texts that can be chosen."""
    default: str
    """The default as it would be typed; "required" if there is none."""

    def __str__(self) -> str:
        return f"{self.name}={self.default} ({self.type})"


def options_of(factory: Callable[..., Any]) -> tuple[Option, ...]:
    """The options that can be given by name; of a factory that takes any, those it names."""
    return tuple(
        Option(parameter.name, _words(_type(parameter)), _default(parameter))
        for parameter in _parameters(factory).values()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    )


def convert(given: Mapping[str, str], factory: Callable[..., Any], title: str) -> dict[str, Any]:
    """The typed options as the keyword arguments of `factory`.

    Raises UsageError, which begins with `title`, for one that is unknown, of another type, or
    missing.
    """
    parameters = _parameters(factory)
    open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    known = {n: p for n, p in parameters.items() if p.kind is not inspect.Parameter.VAR_KEYWORD}
    for option in given:
        if option not in known and not open_ended:
            if not known:
                raise UsageError(f"{title}: got option {option!r}, but it has no options")
            raise UnknownName(f"option of {title}:", option, known)
    for name, parameter in known.items():
        if parameter.default is inspect.Parameter.empty and name not in given:
            raise UsageError(f"{title}: the option {name} is needed; add {name}=…")
    return {
        option: _value(text, _type(known[option]) if option in known else None, option, title)
        for option, text in given.items()
    }


def _parameters(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Parameters that can be given by name; none if Python cannot tell, as for a builtin."""
    try:
        signature = inspect.signature(factory, eval_str=True)
    except NameError:  # an annotation that exists for type checkers only
        signature = inspect.signature(factory)
    except ValueError:
        return {}
    named = (
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.KEYWORD_ONLY,
        inspect.Parameter.VAR_KEYWORD,
    )
    return {name: p for name, p in signature.parameters.items() if p.kind in named}


def _type(parameter: inspect.Parameter) -> Any:
    """The annotation, or else the type of the default; None where neither says anything."""
    annotation, default = parameter.annotation, parameter.default
    if isinstance(annotation, str):
        annotation = _BY_NAME.get(annotation)
    if annotation is inspect.Parameter.empty:
        annotation = type(default) if isinstance(default, (bool, int, float, str)) else None
    return annotation


def _value(text: str, kind: Any, option: str, title: str) -> Any:
    for candidate in _alternatives(kind):
        try:
            return _as(candidate, text)
        except ValueError:
            continue
    raise UsageError(f"{title}: {option}: got {text!r}, expected {_words(kind)}")


def _alternatives(kind: Any) -> tuple[Any, ...]:
    if kind is None:
        return (*_GUESSED, str)
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _as(kind: Any, text: str) -> Any:
    """Raises ValueError where `text` is no `kind`."""
    if kind in (int, float, str):
        return kind(text)
    choices: dict[str, Any] = {}
    if get_origin(kind) is Literal:
        choices = {str(choice): choice for choice in get_args(kind)}
    elif kind is bool:
        text, choices = text.lower(), {"true": True, "false": False}
    elif kind in (None, type(None)):
        text, choices = text.lower(), {"none": None}
    if text not in choices:
        raise ValueError
    return choices[text]


def _words(kind: Any) -> str:
    plain = {bool: "true or false", int: "int", float: "float", str: "text", type(None): "none"}
    if kind is None:
        return "any value"
    if get_origin(kind) is Literal:
        return " or ".join(str(choice) for choice in get_args(kind))
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(_words(alternative) for alternative in get_args(kind))
    return plain.get(kind) or f"{inspect.formatannotation(kind)}, which cannot be typed here"


def _default(parameter: inspect.Parameter) -> str:
    value = parameter.default
    if value is inspect.Parameter.empty:
        return REQUIRED
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def load(text: str) -> Architecture:
    """The architecture that `text` names, see `dpbench.architecture.naming`.

    A factory of somebody's is called, once here and again for every model that is built; torch's
    random state is left as it was.

    Raises:
        UsageError: naming what is wrong with the name, with an option, with what the factory
            raised, or with what it returned.
    """
    sources.check(text)
    name = parse_name(text)
    factory = sources.factory_of(name)
    make = _make(name, factory)
    if name.source in ("shipped", "library"):
        with user_errors_in(name.title, "loading it"):
            architecture = _whole(name, _build(name, make))
        if name.source == "library":
            architecture.name = name.text  # with the options, as errors should say it
        return architecture
    import torch

    with torch.random.fork_rng(devices=[]), user_errors_in(name.title, f"{_called(name)}()"):
        made = make()
    return _understood(name, make, made)


def options(text: str) -> tuple[Option, ...]:
    """The options that the architecture takes; imports what the name is of.

    Raises UsageError for a name that cannot be loaded.
    """
    sources.check(text)
    return options_of(sources.factory_of(parse_name(text)))


def _make(name: Name, factory: Callable[..., Any]) -> Callable[[], Any]:
    """The factory with its options; input_shape goes to it only if it has such a parameter."""
    shape = input_shape(name)
    given = {key: value for key, value in name.options.items() if key != INPUT_SHAPE}
    takes_shape = any(option.name == INPUT_SHAPE for option in options_of(factory))
    if shape is not None and takes_shape:
        raise UsageError(
            f"{name.title}: {INPUT_SHAPE} is dpbench's own option; the factory's parameter needs "
            "another name"
        )
    keywords = convert(given, factory, name.title)
    return lambda: factory(**keywords)


def _build(name: Name, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except ValueError as error:  # of a value that no model can have
        raise UsageError(f"{name.title}: {error}") from None


def _understood(name: Name, make: Callable[[], Any], made: Any) -> Architecture:
    """The architecture for a factory's result: the parts, a model, or an architecture."""
    from torch import nn

    from dpbench.architecture import user_models

    shape = input_shape(name)
    if isinstance(made, nn.Module):
        return user_models.from_model(name.text, make, made, shape)
    if shape is not None:
        raise UsageError(
            f"{name.title}: the factory says itself what the model takes, so {INPUT_SHAPE} has no "
            "meaning; leave it out"
        )
    if type(made) in (tuple, list):
        return user_models.from_parts(name.text, make, tuple(made))
    is_half_one = hasattr(made, "build_model") or hasattr(made, "synthetic_batch")
    if missing_members(made) and not is_half_one:
        raise UsageError(
            f"{name.title}: {_called(name)}() returned {user_models.described(made)}"
            f"{user_models.EXPECTED}"
        )
    return _whole(name, made)


def _whole(name: Name, architecture: Any) -> Architecture:
    missing = missing_members(architecture)
    if missing:
        raise UsageError(
            f"{name.title}: {_called(name)}() gave a {type(architecture).__name__} without "
            f"{', '.join(missing)}; see dpbench.architecture.Architecture"
        )
    return architecture  # type: ignore[no-any-return]


def _called(name: Name) -> str:
    return name.factory or sources.SHIPPED_FACTORY
