"""The product has at most eight private names of torch, all in one module."""

from __future__ import annotations

import ast
import re
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


def private_names(tree: ast.Module) -> tuple[set[str], set[str]]:
    """The names that a module defines; and private ones in its imports of torch, texts, and among
    the attributes that it reads."""
    own, used = set(), set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                own.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                own.add(name)
            case ast.Attribute(attr=name) if PRIVATE.fullmatch(name):
                used.add(name)
            case ast.ImportFrom(module=str(module), names=names) if module.startswith("torch"):
                parts = [*module.split("."), *(alias.name for alias in names)]
                # One name, however it is nested.
                used.update([part for part in parts if PRIVATE.fullmatch(part)][:1])
            case ast.Constant(value=str(text)) if re.match(r"_ddp_|torch(\.\w+)*\._\w", text):
                used.add(text)
    return own, used


def test_private_names_of_torch_are_few_and_in_one_module() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): private_names(ast.parse(path.read_text()))
        for folder in ("dpbench", "architectures")
        for path in ROOT.glob(f"{folder}/**/*.py")
    }
    not_torchs = NOT_TORCHS.union(*(own for own, _ in found.values()))
    used = {name: names - not_torchs for name, (_, names) in found.items()}
    assert {name: names for name, names in used.items() if names and name != HOME} == {}
    # A method of a mixin that overrides torch's, and an attribute that is set.
    hidden = {"_get_ddp_logging_data", "_active_ddp_module"}
    assert 4 <= len(used[HOME] | hidden) <= 8, used[HOME]
