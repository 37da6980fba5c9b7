"""The files of a user's code: the one that a name is of, and those that it imports.

They are found by reading import statements, so nothing runs. What is imported by a computed name,
and files that the code opens, cannot be seen.
"""

from __future__ import annotations

import ast
import importlib.util
import os
from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import truediv
from pathlib import Path

from dpbench.architecture.naming import parse
from dpbench.architecture.user_errors import is_machinery

NOT_THEIRS = ("dpbench",)
"""Packages whose commit every record has."""


def own_files(text: str) -> dict[str, Path]:
    """Files behind a name, by their paths relative to the first folder on the import path; none for
    shipped architectures and models of libraries.

    Imported modules count where they lie in the working directory or beside the file; for
    package.module:factory, in the folder that holds the package. Of an installed module only its
    own file counts.
    """
    name = parse(text)
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
    """And the folder that holds its outermost package; imports the packages that it is in."""
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
