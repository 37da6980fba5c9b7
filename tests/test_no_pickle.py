"""Nothing that another process sends is unpickled: whoever takes its place would run code here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = sorted((ROOT / "dpbench").rglob("*.py"))

UNPICKLES = {
    # From a process that this one has started, through a pipe that it has inherited.
    "dpbench/launch/fork_world.py",
    # From a file in a folder that only its owner can enter, written by the process that started it.
    "dpbench/training/dp_train/processes.py",
}
READERS = {"load", "loads", "Unpickler"}
PICKLERS = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}


@cache
def calls(path: Path) -> tuple[str, ...]:
    """The names that a module calls or refers to, as "dist.all_gather_object"."""
    return tuple(_calls(path))


def _calls(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            yield ast.unparse(node)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_uses_a_collective_of_objects(path: Path) -> None:
    found = [name for name in calls(path) if "_object" in name.rpartition(".")[2]]
    collectives = [name for name in found if "torch" in name or name.startswith("dist.")]
    assert not collectives, f"{collectives}: parallel.groups.gather_values sends plain values"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_what_its_own_parent_or_child_sends_is_unpickled(path: Path) -> None:
    parts = [name.rpartition(".") for name in calls(path)]
    unpickles = any(owner in PICKLERS and name in READERS for owner, _, name in parts)
    assert unpickles == (str(path.relative_to(ROOT)) in UNPICKLES)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_of_torch_are_loaded_as_plain_values(path: Path) -> None:
    source = path.read_text()
    for node in ast.walk(ast.parse(source)) if "load" in source else ():
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
            options = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            assert options.get("weights_only") == "True"
