"""The product has at most nine private names of torch, all in one module."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
HOME = "dpbench/parallel/torch_private.py"
NOT_TORCHS = {
    *("_asdict", "_fields", "_replace"),  # of named tuples
    *("_actions", "_config", "_exit"),  # of argparse, multiprocessing and os
    *("_forkserver", "_forkserver_pid"),  # of multiprocessing
}
"""Attributes of Python's own library."""
PRIVATE = re.compile(r"_[A-Za-z]\w*(?<!__)")


def own_names(trees: list[ast.Module]) -> set[str]:
    """All private names that the product itself defines."""
    names = set()
    for node in (node for tree in trees for node in ast.walk(tree)):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                names.add(name)
            case ast.alias(name=name, asname=other):
                names.add(other or name.rpartition(".")[2])
    return names


def private_names(tree: ast.Module, own: set[str]) -> Iterator[str]:
    """Private names of torch in one module, as imports, attributes and texts."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=names) if module.startswith("torch"):
                parts = [*module.split("."), *(alias.name for alias in names)]
                # One name, however it is nested.
                yield from [part for part in parts if PRIVATE.fullmatch(part)][:1]
            case ast.Attribute(attr=name) if PRIVATE.fullmatch(name):
                if name not in own | NOT_TORCHS:
                    yield name
            case ast.Constant(value=str(text)):
                if re.match(r"_ddp_|torch(\.\w+)*\._\w", text):
                    yield text


def test_private_names_of_torch_are_few_and_in_one_module() -> None:
    paths = [
        path for folder in ("dpbench", "architectures") for path in ROOT.glob(f"{folder}/**/*.py")
    ]
    trees = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in paths}
    own = own_names(list(trees.values()))
    found = {name: sorted(set(private_names(tree, own))) for name, tree in trees.items()}
    assert {name: names for name, names in found.items() if names and name != HOME} == {}
    # A method of a mixin that overrides torch's, and an attribute that is set.
    hidden = {"_get_ddp_logging_data", "_active_ddp_module"}
    assert 4 <= len({*found[HOME], *hidden}) <= 9, found[HOME]
