"""Finds the factory of a name (shipped, in a module, a file or a library) and the user's files."""

from __future__ import annotations

import ast
import difflib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import os
import pkgutil
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
SHIPPED_FACTORY = "Architecture"
"""The name that each module of `architectures/` gives to its factory."""


def names() -> tuple[str, ...]:
    """The architectures that ship with dpbench; imports none of them."""
    modules = pkgutil.iter_modules([str(shipped.ARCHITECTURES)])
    return tuple(sorted(m.name for m in modules if not m.name.startswith("_")))


def check(text: str) -> None:
    """Raises UsageError unless `text` names something that is there.

    Imports no shipped architecture, nor what the name is of: of a dotted module only the parents.
    """
    check_name(parse_name(text))


def check_name(name: Name) -> None:
    """Raises UsageError unless what is named is there; see `check`."""
    if name.source == "shipped":
        if name.origin not in names():
            raise UnknownName("architecture", name.origin, names())
    elif name.source == "file":
        if not Path(name.origin).is_file():
            raise UsageError(f"{name.title}: no file {name.origin} here ({Path.cwd()})")
    elif name.source == "library":
        reason = missing_reason(name.origin)
        if reason is not None:
            raise UsageError(f"{name.title}: {reason}")
    elif name.what == "architecture" and name.origin in names():
        raise UsageError(
            f"{name.title}: expected {name.origin}:option=value; got {name.factory!r} behind the "
            "colon"
        )
    elif not _module_exists(name.origin):
        raise UsageError(
            f"{name.title}: no module {name.origin!r} found; expected {_shipped(name)}"
            f"package.module:{_wanted(name)} with the package on PYTHONPATH, or "
            f"path/to/file.py:{_wanted(name)}"
        )


def check_function(text: str, what: str) -> None:
    """Raises UsageError unless there is the file or module of a function of the user's."""
    check_name(parse_function(text, what))


def load_function(text: str, what: str) -> Callable[..., Any]:
    """The function of the user's that `text` names as its `what`, "step" or "dataset".

    Imports its file or module. Raises UsageError if there is no such function.
    """
    check_function(text, what)
    return factory_of(parse_function(text, what))


def _shipped(name: Name) -> str:
    """The shipped names as alternatives in an error about an architecture; else empty."""
    return f"one of {', '.join(names())}, or " if name.what == "architecture" else ""


def _wanted(name: Name) -> str:
    return "factory" if name.what == "architecture" else name.what


def missing_reason(library: str) -> str | None:
    """Why the models of a library cannot be used here; None if they can."""
    if _module_exists(library):
        return None
    return f"the package {library} is not installed; pip install 'dpbench[{library}]'"


def factory_of(name: Name) -> Callable[..., Any]:
    """The function that makes the architecture, or its model, from typed options; imports its
    module.

    Raises UsageError for a module that cannot be imported, or that has no such function.
    """
    if name.source == "shipped":
        return _from_module(name, f"dpbench.architectures.{name.origin}", SHIPPED_FACTORY)
    if name.source == "library":
        factory = _from_module(name, LIBRARIES_MODULE, f"from_{name.origin}")
        return functools.partial(factory, name.factory)
    if name.source == "module":
        return _from_module(name, name.origin, name.factory)
    with user_errors_in(name.title, "loading it"):
        module = _of_file(Path(name.origin).resolve())
    return _function(name, module, name.factory)


def _from_module(name: Name, module_name: str, factory_name: str) -> Callable[..., Any]:
    with user_errors_in(name.title, "loading it"):
        module = importlib.import_module(module_name)
    return _function(name, module, factory_name)


def _function(name: Name, module: ModuleType, wanted: str) -> Callable[..., Any]:
    found = getattr(module, wanted, None)
    if callable(found):
        return found  # type: ignore[no-any-return]
    own = [
        key
        for key, value in vars(module).items()
        if callable(value)
        and not key.startswith("_")
        and inspect.getmodule(value) in (module, None)
    ]
    near = difflib.get_close_matches(wanted, own, n=1, cutoff=0.5)
    guess = f"did you mean {near[0]}? " if near else ""
    raise UsageError(
        f"{name.title}: {name.origin} has no {wanted}(); {guess}"
        f"it has {', '.join(own) or 'no function'}"
    )


@functools.cache
def _of_file(path: Path) -> ModuleType:
    """The module of a file, imported once in a process, under a name that no other module has.

    Its folder is looked in last for what it imports, so that files beside it are found, and none
    of them takes the place of an installed package.
    """
    unique = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(unique, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
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


def _module_exists(name: str) -> bool:
    """Looks for the module; of a dotted name this imports the parents, which may fail."""
    try:
        return importlib.util.find_spec(name) is not None
    except Exception:
        return False


NOT_THEIRS = ("dpbench",)
"""Packages whose commit every record has."""


def own_files(text: str) -> dict[str, Path]:
    """Files behind a name, by their paths relative to the first folder on the import path; none for
    shipped architectures and models of libraries.

    Imported modules count where they lie in the working directory or beside the file; for
    package.module:factory, in the folder that holds the package. Of an installed module only its
    own file counts.
    """
    name = parse_name(text)
    if name.source == "file":
        first = Path(name.origin).resolve()
        root, waiting = first.parent, [first]
    elif name.source == "module" and (found := _file_of_module(name.origin)):
        first, root = found
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


def _file_of_module(name: str) -> tuple[Path, Path] | None:
    """The file of a module, and the folder that holds its outermost package; imports the packages
    that it is in. None if it has no file."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # who loads it will say so
        return None
    path = Path("" if spec is None else spec.origin or "")
    if not path.is_file():  # not there, or a builtin
        return None
    return path, path.parents[name.count(".") + (path.stem == "__init__")]


def _imported(path: Path, roots: Sequence[Path]) -> Iterator[Path]:
    """The files of what import statements anywhere in a file name."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):  # who loads it will say so
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
    """The files of a dotted name, its packages included, from the first folder that has it."""
    parts = name.split(".")
    if parts[0] in NOT_THEIRS:
        return
    for start in starts:
        places = [*accumulate(parts, truediv, initial=start)][1:]
        found = [file for place in places if (file := _file_at(place))]
        yield from found
        if found:
            return


def _file_at(place: Path) -> Path | None:
    files = (place / "__init__.py", place.with_name(f"{place.name}.py"))
    return next((file for file in files if file.is_file()), None)
