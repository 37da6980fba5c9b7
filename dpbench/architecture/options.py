"""Options of an architecture: the parameters of its factory, converted by their annotations."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BeforeValidator, TypeAdapter, ValidationError

from dpbench.errors import UnknownName, UsageError

EMPTY = inspect.Parameter.empty
REQUIRED = "required"


def _as_it_looks(text: str) -> Any:
    with suppress(ValueError):
        return json.loads(text.lower() if text.lower() in ("true", "false") else text)
    return text


UNTYPED = Annotated[Any, BeforeValidator(_as_it_looks)]
"""The type of an option whose parameter has neither an annotation nor a default of a simple
type."""


def default_options(factory: Callable[..., Any]) -> dict[str, str]:
    """The named options of a factory, with their defaults as you would type them and the other
    choices, "micro (or base)"; REQUIRED if there is no default."""
    texts = dict[str, str]()
    for name, parameter in _parameters(factory)[0].items():
        default, kind = parameter.default, parameter.annotation
        text = REQUIRED if default is EMPTY else str(default)
        texts[name] = text.lower() if isinstance(default, bool | None) else text
        if get_origin(kind) is Literal:
            others = ", ".join(str(one) for one in get_args(kind) if one != default)
            texts[name] += f" (or {others})"
    return texts


def convert(given: Mapping[str, str], factory: Callable[..., Any], title: str) -> dict[str, Any]:
    """The typed options as keyword arguments of `factory`.

    Raises UsageError, which begins with `title`, if one is unknown, missing or of another type.
    """
    known, takes_others = _parameters(factory)
    values: dict[str, Any] = {}
    for option, text in given.items():
        if option not in known and not takes_others:
            if not known:
                raise UsageError(f"{title}: got the option {option}, but it takes none")
            raise UnknownName(f"option of {title}", option, known)
        kind = known[option].annotation if option in known else UNTYPED
        if text.lower() == "none" and type(None) in get_args(kind):
            values[option] = None
            continue
        try:
            values[option] = TypeAdapter(kind).validate_python(text)
        except ValidationError as error:
            wrong = error.errors()[0]["msg"].replace("Input", "it", 1)
            raise UsageError(f"{title}: {option}: got {text!r}; {wrong}") from None
    for option, parameter in known.items():
        if parameter.default is EMPTY and option not in given:
            raise UsageError(f"{title}: {option} has no default; expected the option {option}=…")
    return values


def _parameters(factory: Callable[..., Any]) -> tuple[dict[str, inspect.Parameter], bool]:
    """Parameters that can be given by name, each with a type, none if Python cannot tell, as for a
    builtin; and whether it takes others too."""
    try:
        signature = inspect.signature(factory, eval_str=True)
    except NameError:  # an annotation that exists for type checkers only
        signature = inspect.signature(factory)
    except ValueError:
        return {}, False
    known, takes_others = dict[str, inspect.Parameter](), False
    for parameter in signature.parameters.values():
        kind = parameter.annotation
        if kind is EMPTY or isinstance(kind, str):
            kind = type(parameter.default)
            kind = kind if kind in (bool, int, float, str) else UNTYPED
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            known[parameter.name] = parameter.replace(annotation=kind)
        takes_others |= parameter.kind is parameter.VAR_KEYWORD
    return known, takes_others
