"""Finds the factory of a name (shipped, in a module or a file, or torchvision's) and its file."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import pkgutil
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from dpbench import shipped
from dpbench.architecture.naming import TORCHVISION, Name, parse_function, parse_name
from dpbench.architecture.user_errors import user_errors_in
from dpbench.errors import UnknownName, UsageError

OTHER_LIBRARIES = ("timm", "transformers")
"""Libraries whose models need a function of the user's, unlike those of torchvision."""


def names() -> tuple[str, ...]:
    """The architectures that ship with dpbench; imports none of them."""
    modules = pkgutil.iter_modules([str(shipped.ARCHITECTURES)])
    return tuple(sorted(m.name for m in modules if not m.name.startswith("_")))


def check(text: str) -> None:
    """Raise UsageError unless `text` names something that exists.

    Of a dotted module this imports the parents, and nothing else.
    """
    _check(parse_name(text))


def check_function(text: str, what: str) -> None:
    """Raise UsageError unless the file or module of the user's function exists."""
    _check(parse_function(text, what))


def load_function(text: str, what: str) -> Callable[..., Any]:
    """The user's function that `text` names as its `what`, "step" or "dataset".

    Imports its file or module. Raises UsageError if there is no such function.
    """
    check_function(text, what)
    return factory_of(parse_function(text, what))


def _check(name: Name) -> None:
    if name.source == "shipped":
        if name.origin not in names():
            resnet = re.fullmatch(r"resnet-?(\d+)", name.origin)
            forms = (*names(), f"{TORCHVISION}:NAME")
            raise UnknownName(
                "architecture", name.origin, forms, near=resnet and f"resnet:depth={resnet[1]}"
            )
    elif name.source == "file":
        if not Path(name.origin).is_file():
            raise UsageError(f"{name.title}: no file {name.origin} here ({Path.cwd()})")
    elif name.source == "torchvision":
        if reason := torchvision_reason():
            raise UsageError(f"{name.title}: {reason}")
    elif name.origin in OTHER_LIBRARIES:
        raise UsageError(
            f"{name.title}: dpbench builds no models of {name.origin}; write a function that does "
            "in a file, and name it: path/to/file.py:function"
        )
    elif not _module_exists(name.origin):
        known = f"one of {', '.join(names())}, " if name.what == "architecture" else ""
        raise UsageError(
            f"{name.title}: no module {name.origin!r} found; expected {known}"
            "package.module:function with the package on PYTHONPATH, or path/to/file.py:function"
        )


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


def factory_of(name: Name) -> Callable[..., Any]:
    """The function that makes the architecture, or its model, from typed options.

    Raises UsageError if its module cannot be imported or has no such function.
    """
    with user_errors_in(name.title, "loading it"):
        if name.source == "torchvision":
            from dpbench.architecture.torchvision_models import TorchvisionClassifier

            return functools.partial(TorchvisionClassifier, name.factory)
        if name.source == "file":
            found = _module_of_file(Path(name.origin).resolve())
        elif name.source == "shipped":
            found = importlib.import_module(f"dpbench.architectures.{name.origin}")
        else:
            found = importlib.import_module(name.origin)
        function: Callable[..., Any] | None = getattr(found, name.factory, None)
    if not callable(function):
        raise UsageError(f"{name.title}: {name.origin} has no {name.factory}()")
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


def own_file(text: str) -> Path | None:
    """The user's file that a name leads to, or that of its module; None for what dpbench or
    torchvision brings, and for a module without a file."""
    name = parse_name(text)
    if name.source == "file":
        return Path(name.origin).resolve()
    if name.source != "module":
        return None
    try:
        spec = importlib.util.find_spec(name.origin)
    except (ImportError, ValueError):  # loading it reports the error
        return None
    file = Path("" if spec is None else spec.origin or "")
    return file if file.is_file() else None
