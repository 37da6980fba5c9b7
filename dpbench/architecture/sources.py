"""Finds the factory of a name (shipped, in a module, a file or a library) and the user's files."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import importlib.util
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from operator import truediv
from pathlib import Path
from types import ModuleType
from typing import Any

from dpbench import shipped
from dpbench.architecture.naming import Name, parse_function, parse_name
from dpbench.architecture.user_errors import is_machinery, user_errors_in
from dpbench.errors import UnknownName, UsageError

LIBRARIES_MODULE = "dpbench.architecture.libraries"


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
            forms = (*names(), "torchvision:NAME", "timm:NAME", "transformers:NAME")
            raise UnknownName(
                "architecture", name.origin, forms, near=resnet and f"resnet:depth={resnet[1]}"
            )
    elif name.source == "file":
        if not Path(name.origin).is_file():
            raise UsageError(f"{name.title}: no file {name.origin} here ({Path.cwd()})")
    elif name.source == "library":
        if reason := missing_reason(name.origin):
            raise UsageError(f"{name.title}: {reason}")
    elif not _module_exists(name.origin):
        known = f"one of {', '.join(names())}, " if name.what == "architecture" else ""
        raise UsageError(
            f"{name.title}: no module {name.origin!r} found; expected {known}"
            "package.module:function with the package on PYTHONPATH, or path/to/file.py:function"
        )


def missing_reason(library: str) -> str | None:
    """Why the models of a library cannot be used here; None if they can."""
    if _module_exists(library):
        return None
    return f"the package {library} is not installed; pip install 'dpbench[{library}]'"


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
    module, wanted = {
        "shipped": (f"dpbench.architectures.{name.origin}", name.factory),
        "library": (LIBRARIES_MODULE, f"from_{name.origin}"),
    }.get(name.source, (name.origin, name.factory))
    with user_errors_in(name.title, "loading it"):
        if name.source == "file":
            found = _module_of_file(Path(name.origin).resolve())
        else:
            found = importlib.import_module(module)
    function = getattr(found, wanted, None)
    if not callable(function):
        raise UsageError(f"{name.title}: {name.origin} has no {wanted}()")
    return functools.partial(function, name.factory) if name.source == "library" else function


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


def own_files(text: str) -> dict[str, Path]:
    """The user's files behind a name, by their paths relative to its folder; none for shipped
    architectures and models of libraries.

    Imported modules count if they are in the working directory, or in the folder of the file or of
    the outermost package. Of an installed module only its own file counts.
    """
    name = parse_name(text)
    if name.source == "file":
        first = Path(name.origin).resolve()
        root, waiting = first.parent, [first]
    elif name.source == "module":
        try:
            spec = importlib.util.find_spec(name.origin)
        except (ImportError, ValueError):  # loading it reports the error
            return {}
        first = Path("" if spec is None else spec.origin or "")
        if not first.is_file():
            return {}
        root = first.parents[name.origin.count(".") + (first.stem == "__init__")]
        waiting = [first] if is_machinery(first) else [*_modules((root,), name.origin)]
    else:
        return {}
    files: dict[str, Path] = {}
    while waiting:
        path = waiting.pop()
        relative = Path(os.path.relpath(path, root)).as_posix()
        if relative not in files:
            files[relative] = path
            if not is_machinery(path):
                waiting += _imported(path, (Path.cwd(), root))
    return dict(sorted(files.items()))


def _imported(path: Path, roots: Sequence[Path]) -> Iterator[Path]:
    """The files of all import statements in a file."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):  # loading it reports the error
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _modules(roots, alias.name)
        elif isinstance(node, ast.ImportFrom):
            starts = path.parents[node.level - 1 : node.level] if node.level else roots
            for alias in node.names:
                yield from _modules(starts, ".".join(filter(None, (node.module, alias.name))))


def _modules(starts: Sequence[Path], name: str) -> Iterator[Path]:
    """The files of a dotted name and its packages, in the first folder that has it."""
    parts = name.split(".")
    if parts[0] == "dpbench":  # records have its commit
        return
    for start in starts:
        found = []
        for place in [*accumulate(parts, truediv, initial=start)][1:]:
            files = (place / "__init__.py", place.with_name(f"{place.name}.py"))
            found += [file for file in files if file.is_file()][:1]
        if found:
            yield from found
            return
