"""Arguments of Python calls, as somebody would type them for the command of the same name."""

from __future__ import annotations

import difflib
import functools
import inspect
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import fields
from os import PathLike
from pathlib import Path
from types import GenericAlias, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from dpbench.errors import UsageError
from dpbench.run.option_layers import words_of
from dpbench.specs.settings import AUTO, Auto, Flag, Percentage, Setting, settings_of
from dpbench.values import NOT_BEFORE_OPTION

ARGUMENTS = "Args:"
"""The line above the documented parameters."""
PROGRESS = "Print on stderr what the command prints there; otherwise nothing is printed."


def document(function: Callable[..., Any], options: Any, *, flags: Mapping[str, str]) -> None:
    """Gives a function the signature and the documented parameters of a command's options.

    `flags` are more parameters, off by default, with their help.
    """
    returned = get_type_hints(function)["return"]
    asked = [*_option_parameters(options), *map(_flag, flags)]
    function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [parameter for parameter, _ in asked], return_annotation=returned
    )
    helps = [*(text for _, text in asked[: -len(flags)]), *flags.values()]
    lines = [
        f"    {parameter.name}: {' '.join(text.split())}"
        for (parameter, _), text in zip(asked, helps, strict=True)
    ]
    function.__doc__ = f"{inspect.getdoc(function)}\n\n{ARGUMENTS}\n" + "\n".join(lines) + "\n"


def _flag(name: str) -> tuple[inspect.Parameter, str]:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=False, annotation=bool), ""


def _option_parameters(options: Any) -> Iterator[tuple[inspect.Parameter, str]]:
    """A parameter for each option, and its help with what AUTO stands for."""
    declared, hints = settings_of(options), get_type_hints(options)
    for field in fields(options):
        setting = declared[field.name]
        if not setting.in_python:
            continue
        parameter = inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=setting.typed_default or field.default,
            annotation=_accepted(hints[field.name], setting),
        )
        usual = f" Default: {setting.default_text}." if setting.default_text else ""
        yield parameter, f"{setting.help}{usual}"


def _accepted(hint: Any, setting: Setting) -> Any:
    """The type of an argument: whatever can be typed can also be given as text."""
    if hint is bool:
        return bool
    kinds: list[Any] = []
    for one in _alternatives(hint):
        if get_origin(one) is tuple:
            item = get_args(one)[0]
            kinds += [GenericAlias(Sequence, (item,)), *_alternatives(item)]
        elif one is not Auto and not (one is float and isinstance(setting.kind, Percentage)):
            kinds += [PathLike[str]] if one is Path else [one]
    return functools.reduce(operator.or_, [*kinds, str])


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def spellings_of(options: Any) -> dict[str, str]:
    """Every name that an option has on the command line, as Python writes it, and its field: both
    `optimizer` and `optimizers`."""
    return {
        spelling.replace("-", "_"): name
        for name, setting in settings_of(options).items()
        for spelling in setting.spellings
    }


def named(
    function: Callable[..., Any], options: Mapping[str, Any], spellings: Mapping[str, str]
) -> dict[str, Any]:
    """The arguments that are given, each by its own name; `spellings` are other names of some.

    Raises TypeError for a name that is none of them, with the one that may be meant, and for two
    names of the same.
    """
    known = inspect.signature(function).parameters
    found: dict[str, Any] = {}
    given_as: dict[str, str] = {}
    for name, value in options.items():
        field = name if name in known else spellings.get(name, name)
        if field not in known:
            hint = _hint(name, known, spellings)
            raise TypeError(f"got an unexpected keyword argument {name!r}{hint}")
        if field in found:
            other = given_as[field]
            raise TypeError(f"got {name!r} beside another name of the same argument, {other!r}")
        found[field], given_as[field] = value, name
    return found


def _hint(name: str, known: Collection[str], spellings: Mapping[str, str]) -> str:
    """What may be meant by a name that is no argument; "" if nothing is near."""
    if name in spellings:
        return "; it is an option of the command only"
    possible = [*known, *(other for other, field in spellings.items() if field in known)]
    near = difflib.get_close_matches(name, possible, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def defaults_of(function: Callable[..., Any]) -> dict[str, Any]:
    return {name: one.default for name, one in inspect.signature(function).parameters.items()}


def given_texts(given: Mapping[str, Any], options: Any) -> dict[str, str | bool | None]:
    """The arguments as they would be typed, and flags as they are; without those that are None or
    AUTO, and those that the command has not."""
    return {
        name: given[name] if isinstance(setting.kind, Flag) else text
        for name, setting in settings_of(options).items()
        if name in given and (text := setting.as_typed(given[name])) is not None
    }


def equivalent_command(
    given: Mapping[str, Any], function: Callable[..., Any], options: Any
) -> list[str]:
    """Words to type after "dpbench" for the same as a call of the function without any file."""
    usual = given_texts(defaults_of(function), options)
    texts = given_texts(given, options)
    changed = {name: text for name, text in texts.items() if text != usual.get(name)}
    return [function.__name__, *words_of(options, changed)]


def listed_arguments(given: Mapping[str, Any], function: Callable[..., Any]) -> dict[str, Any]:
    """The arguments in the form of a shell's: sequences instead of arrays and generators.

    Raises UsageError for what has no order or is no list of names or numbers, and for a None
    that is no default.
    """
    defaults = defaults_of(function)
    for name, value in given.items():
        if value is None and defaults[name] not in (None, AUTO):
            raise UsageError(f"{name}: expected {_expected(defaults[name])}, got None")
        if isinstance(value, (bytes, bytearray, Mapping, Set)):
            raise UsageError(
                f"{name}: expected text, a number or a list, got {type(value).__name__}"
            )
    return {name: _listed(name, value) for name, value in given.items()}


def check_folder(name: str, value: object) -> None:
    if not str(value):
        raise UsageError(f"{name}: expected the name of a folder, got ''")


def check_flags(given: Mapping[str, Any], options: Any) -> None:
    """Raises UsageError for a flag that is no truth value; what only the call has is one."""
    declared = settings_of(options)
    for name, value in given.items():
        is_flag = name not in declared or isinstance(declared[name].kind, Flag)
        if is_flag and not isinstance(value, bool):
            raise UsageError(f"{name}: expected True or False, got {value!r}")


def check_importable(named: object, what: str = "arch", *, several: bool = False) -> None:
    """Ranks are processes of their own, that know nothing of what was defined here."""
    if several and isinstance(named, Sequence) and not isinstance(named, str):
        for one in named:
            check_importable(one, what)
        return
    if not isinstance(named, str):
        raise UsageError(
            f"{what}: expected a name, or 'package.module:factory', got {type(named).__name__}"
        )
    if named.startswith(("__main__:", "__mp_main__:")):
        raise UsageError(
            f"{what} {named!r}: ranks are processes of their own and cannot import what was "
            "defined in a script or a notebook; put it into a module, as in 'my_models:Net'"
        )


def _expected(default: object) -> str:
    return "a list" if isinstance(default, tuple) else f"a value such as {default!r}"


def _listed(name: str, value: Any) -> Any:
    if isinstance(value, (str, PathLike)) or not _is_iterable(value):
        return value
    items = list(value)
    for item in items:
        if _is_iterable(item) and not isinstance(item, str):
            raise UsageError(f"{name}: expected one list, got {item!r} in a list")
        if isinstance(item, str) and NOT_BEFORE_OPTION.search(item):
            raise UsageError(f"{name}: expected a name or a number in each item, got {item!r}")
    return items


def _is_iterable(value: object) -> bool:
    """An array without dimensions has the method, and is one number."""
    return isinstance(value, Iterable) and getattr(value, "ndim", 1) > 0
