"""Finds what a name stands for, checks that it is there, and loads it."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from dpbench import shipped
from dpbench.architecture.naming import TORCHVISION, FunctionName, parse_name
from dpbench.architecture.options import convert, default_options
from dpbench.architecture.protocol import Architecture
from dpbench.architecture.user_errors import described, user_errors_in
from dpbench.errors import UnknownName, UsageError, nearest_name


def shipped_architectures() -> tuple[str, ...]:
    """The names of the architectures that ship with dpbench; imports none of them."""
    modules = pkgutil.iter_modules([str(shipped.ARCHITECTURES)])
    return tuple(sorted(m.name for m in modules if not m.name.startswith("_")))


def load_function(text: str, what: str) -> Callable[..., Any]:
    """The user's function that `text` names as its `what`; imports its file or module. Raises
    UsageError if there is no such function."""
    return _function_of(parse_name(text, what))


def load_architecture(text: str) -> Architecture:
    """The architecture that `text` names, see `dpbench.architecture.naming`.

    A user's factory is called here and again for every model that is built. torch's random state
    stays as it was.

    Raises:
        UsageError: naming what is wrong with the name, an option, the factory or its result.
    """
    name = parse_name(text)
    factory = _function_of(name)
    make = functools.partial(factory, **convert(name.options, factory, name.title))
    if not name.is_user_code:
        with user_errors_in(name.title, "loading it"):
            try:
                architecture: Architecture = make()
            except ValueError as error:  # an option that no model can have
                raise UsageError(f"{name.title}: {error}") from None
        return architecture
    import torch

    from dpbench.architecture.built import EXPECTED_PARTS, UserArchitecture

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
        raise UsageError(f"{returned}{EXPECTED_PARTS}")
    methods = [member for member in vars(Architecture) if not member.startswith("_")]
    members = [*Architecture.__annotations__, *methods]
    if missing := [member for member in members if not hasattr(made, member)]:
        raise UsageError(
            f"{returned} without {', '.join(missing)}; see dpbench.architecture.Architecture"
        )
    user_architecture: Architecture = made
    return user_architecture


def architecture_options(text: str) -> dict[str, str]:
    """The options of the architecture with their defaults as you would type them; imports its
    module. Raises UsageError if it cannot be loaded."""
    return default_options(_function_of(parse_name(text)))


def torchvision_reason() -> str | None:
    """Why the models of torchvision cannot be used here; None if they can."""
    if _module_exists(TORCHVISION):
        return None
    return "the package torchvision is not installed; pip install 'dpbench[torchvision]'"


def _module_exists(name: str) -> bool:
    """Look for the module; of a dotted name this imports the parents, which may fail."""
    try:
        return importlib.util.find_spec(name) is not None
    except Exception:
        return False


def _function_of(name: FunctionName) -> Callable[..., Any]:
    """The function that has the name, such as the one that makes an architecture from its options.

    Raises UsageError if it does not exist, or its module cannot be imported.
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
            raise UnknownName("architecture", origin, (*known, f"{TORCHVISION}:NAME"))
    elif name.source == "file":
        if not Path(origin).is_file():
            raise UsageError(f"{name.title}: no file {origin} here ({Path.cwd()})")
    elif not _module_exists(origin):
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
