"""Finds what a name stands for, and loads it with its options: the parameters of its function,
converted by their annotations."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import inspect
import json
import pkgutil
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, cast, get_args, get_origin

from pydantic import BeforeValidator, TypeAdapter, ValidationError

from dpbench import shipped
from dpbench.architecture.naming import TORCHVISION, FunctionName, find_module, parse_name
from dpbench.architecture.protocol import Architecture
from dpbench.architecture.user_errors import described, user_errors_in
from dpbench.errors import UsageError, nearest_name, no_file, unknown_name

EMPTY = inspect.Parameter.empty
REQUIRED = "required"


def _as_it_looks(text: str) -> Any:
    with suppress(ValueError):
        return json.loads(text.lower() if text.lower() in ("true", "false") else text)
    return text


UNTYPED = Annotated[Any, BeforeValidator(_as_it_looks)]
"""The type of an option whose parameter has neither an annotation nor a default of a simple
type."""


def shipped_architectures() -> tuple[str, ...]:
    """The names of the architectures that ship with dpbench; imports none of them."""
    modules = pkgutil.iter_modules([str(shipped.ARCHITECTURES)])
    return tuple(sorted(m.name for m in modules if not m.name.startswith("_")))


def load_architecture(text: str) -> Architecture:
    """The architecture that `text` names, see `dpbench.architecture.naming`.

    A user's factory is called here and again for every model that is built. torch's random state
    stays as it was.

    Raises:
        UsageError: naming what is wrong with the name, an option, the factory or its result.
    """
    name = parse_name(text)
    factory = load_function(name)
    make = functools.partial(factory, **convert(name.options, factory, name.title))
    if not name.is_user_code:
        with user_errors_in(name.title, "loading it"):
            try:
                architecture: Architecture = make()
            except ValueError as error:  # an option that no model can have
                raise UsageError(f"{name.title}: {error}") from None
        return architecture
    import torch

    from dpbench.architecture.built import UserArchitecture

    if isinstance(factory, torch.nn.Module):
        raise UsageError(
            f"{name.title}: {name.factory} is a model; expected a function that returns a new one"
        )
    with torch.random.fork_rng(devices=[]), user_errors_in(name.title, f"{name.factory}()", make):
        made: Any = make()
    if type(made) in (tuple, list) and len(made) == 3:
        model, batch, loss = made
        if isinstance(model, torch.nn.Module) and callable(batch) and callable(loss):
            return UserArchitecture(name.text, make, batch, loss)
    returned = f"{name.title}: {name.factory}() returned {described(made)}"
    if not (hasattr(made, "build_model") or hasattr(made, "synthetic_batch")):
        raise UsageError(
            f"{returned}; expected (model, batch, loss), where batch(samples, generator) returns "
            "(inputs, targets), as in the file that dpbench init writes, or an object like "
            "dpbench.architecture.Architecture"
        )
    methods = [member for member in vars(Architecture) if not member.startswith("_")]
    members = [*Architecture.__annotations__, *methods]
    if missing := [member for member in members if not hasattr(made, member)]:
        raise UsageError(
            f"{returned} without {', '.join(missing)}; see dpbench.architecture.Architecture"
        )
    return cast("Architecture", made)


def architecture_options(text: str) -> dict[str, str]:
    """The `default_options` of an architecture; imports its module. Raises UsageError if it cannot
    be loaded."""
    return default_options(load_function(parse_name(text)))


def torchvision_reason() -> str | None:
    """Why the models of torchvision cannot be used here; None if they can."""
    if find_module(TORCHVISION) is not None:
        return None
    return "the package torchvision is not installed; pip install 'dpbench[torchvision]'"


def load_function(name: FunctionName) -> Callable[..., Any]:
    """The function that has the name, such as the one that makes an architecture from its options.

    This imports its file or module. Raises UsageError if there is no such function, or the module
    cannot be imported.
    """
    origin, module = name.origin, name.origin
    if name.source == "torchvision":
        if reason := torchvision_reason():
            raise UsageError(f"{name.title}: {reason}")
        from dpbench.architecture.built import TorchvisionClassifier

        return functools.partial(TorchvisionClassifier, name.factory)
    if name.source == "shipped":
        module = f"dpbench.architectures.{origin}"
        if origin not in (known := shipped_architectures()):
            raise unknown_name("architecture", origin, (*known, f"{TORCHVISION}:NAME"))
    elif name.source == "file":
        if not Path(origin).is_file():
            raise UsageError(f"{name.title}: {no_file(origin)}")
    elif find_module(origin) is None:
        is_architecture = name.what == "architecture"
        shipped_names = f"one of {', '.join(shipped_architectures())}, " if is_architecture else ""
        raise UsageError(
            f"{name.title}: no module {origin!r} found; expected {shipped_names}"
            "package.module:function with the package on PYTHONPATH, or path/to/file.py:function"
        )
    with user_errors_in(name.title, "loading it"):
        is_file = name.source == "file"
        imported = _module_of_file(Path(origin).resolve()) if is_file else import_module(module)
        function: Callable[..., Any] | None = getattr(imported, name.factory, None)
    if not callable(function):
        public = [key for key, one in vars(imported).items() if callable(one) and key[0] != "_"]
        near = nearest_name(name.factory, public)
        guess = f"; did you mean {near!r}?" if near else ""
        raise UsageError(f"{name.title}: {origin} has no {name.factory}(){guess}")
    return function


@functools.cache
def _module_of_file(path: Path) -> ModuleType:
    """The module of a file, imported once per process, under a name that no other module has.

    Its folder comes last on the import path: files beside it are found, and none of them replaces
    an installed package.
    """
    unique = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(unique, path)
    assert spec is not None  # since its name ends in .py
    assert spec.loader is not None
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique] = module  # where dataclasses look for it
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[unique]
        raise
    return module


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
            raise unknown_name(f"option of {title}", option, known)
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
