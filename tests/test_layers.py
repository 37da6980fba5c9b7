"""The architecture of the code, as rules that a test can break."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = sorted((ROOT / "dpbench").rglob("*.py"))
ARCHITECTURES = sorted((ROOT / "architectures").rglob("*.py"))
LAYERS = (
    ("errors", "units", "messages", "requirements", "parent_death"),
    ("temporary", "codec"),
    ("files",),
    ("specs",),
    ("records",),
    ("folders", "architecture"),
    ("parallel",),
    ("rendezvous",),
    ("data",),
    ("measure",),
    ("launch",),
    ("training",),
    ("analysis",),
    ("report",),
    ("options",),
    ("run",),
    ("api",),
    ("cli",),
    ("__main__", "__init__"),
)
HEIGHT = {name: height for height, layer in enumerate(LAYERS) for name in layer}
NEVER = {
    # A library that can be lifted out.
    "parallel": {f"dpbench.{name}" for name in HEIGHT if name != "parallel"},
    "records": {"torch"},
    "analysis": {"torch", "dpbench.parallel", "dpbench.measure", "dpbench.launch"},
    "report": {"torch", "dpbench.parallel", "dpbench.measure", "dpbench.launch"},
    "folders": {"torch", "pandas", "numpy"},
}
MAX_MODULE = 600
MAX_FOLDER = 30
NOT_READ = ("__pycache__", "__init__.pyi")
"""Entries of a folder that programs write."""
UNPICKLES = {
    # From a pipe to a process that this one has started, as multiprocessing's own recv does.
    "launch/ranks.py",
    # From a file in a folder that only its owner can enter, written by the process that started it.
    "training/dp_train.py",
}
"""Modules that may unpickle; nothing that comes over a network or out of a results folder is."""
PICKLERS = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}


def layer_of(path: Path) -> str:
    return path.relative_to(ROOT / "dpbench").with_suffix("").parts[0]


def layer_path(path: Path) -> str:
    return path.relative_to(ROOT / "dpbench").as_posix()


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imported(path: Path) -> tuple[str, ...]:
    """Every module that a file imports, at any depth, as "dpbench.folders" for names from it."""
    return tuple(_imported(path))


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(_parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield "." * node.level + node.module
            if node.module == "dpbench":
                yield from (f"dpbench.{alias.name}" for alias in node.names)


def test_imports_point_down() -> None:
    upward = []
    for path in MODULES:
        own = layer_of(path)
        for name in imported(path):
            package, _, rest = name.partition(".")
            target = rest.split(".")[0]
            if package == "dpbench" and target in HEIGHT and target != own:
                upward += [f"{path} imports {name}"] * (HEIGHT[target] >= HEIGHT[own])
    assert not upward, "\n".join(upward)


def test_forbidden_imports_are_absent() -> None:
    found = []
    for path in MODULES:
        own = layer_path(path)
        for forbidden in (name for part in NEVER if own.startswith(part) for name in NEVER[part]):
            found += [
                f"{path} imports {name}"
                for name in imported(path)
                if name == forbidden or name.startswith(f"{forbidden}.")
            ]
    assert not found, "\n".join(found)


def test_architectures_import_torch_only() -> None:
    known = {"torch", *sys.stdlib_module_names}
    for path in ARCHITECTURES:
        others = [n for n in imported(path) if n.split(".")[0] not in known and n[0] != "."]
        assert not others, f"{path} imports {others}"


def test_modules_and_folders_are_small_enough_to_be_read() -> None:
    large = [path for path in [*MODULES, *ARCHITECTURES] if lines(path) > MAX_MODULE]
    for folder in {path.parent for path in MODULES}:
        entries = [path for path in folder.iterdir() if path.name not in NOT_READ]
        large += [folder] * (len(entries) > MAX_FOLDER)
    assert not large


def lines(path: Path) -> int:
    return path.read_text().count("\n")


def test_every_package_is_in_the_wheel() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    packages = {".".join(path.parent.relative_to(ROOT).parts) for path in MODULES}
    assert {name for name in listed if "_shipped" not in name} == packages


def test_no_module_is_a_box_of_leftovers() -> None:
    names = {path.stem for path in MODULES}
    assert not names & {"utils", "util", "helpers", "common", "misc"}


HEAVY = {"torch", "numpy", "pandas", "matplotlib", "scipy", "sklearn", "tabulate", "yaml"}


@pytest.mark.parametrize(
    ("arguments", "status", "missing"),
    [
        ("--help", 0, HEAVY),
        ("sweep --help", 0, HEAVY),
        ("train --help", 0, HEAVY),
        ("--version", 0, HEAVY),
        ("sweep --batch-sizes 32,abc", 2, {"torch"}),
        ("train --lr=x", 2, {"torch"}),
    ],
)
def test_help_and_usage_errors_import_nothing_heavy(
    arguments: str, status: int, missing: set[str]
) -> None:
    code = (
        "import sys; from dpbench.cli.app import run; status = run(sys.argv[1:]);"
        "print(status, *sys.modules, file=sys.stderr)"
    )
    words = [sys.executable, "-c", code, *arguments.split()]
    finished = subprocess.run(words, capture_output=True, text=True, check=True)
    found, *modules = finished.stderr.splitlines()[-1].split()
    assert (int(found), missing & {*modules}) == (status, set())


def test_modules_import_each_other_in_no_circle() -> None:
    """Of what is imported with a module; an import inside a function may look back."""
    graph = {_module(path): set(_imported_at_once(path)) for path in MODULES}
    while leaves := [name for name, others in graph.items() if not others & graph.keys()]:
        for name in leaves:
            del graph[name]
    assert not graph, f"in circles, or above one: {sorted(graph)}"


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _imported_at_once(path: Path) -> Iterator[str]:
    for node in _parsed(path).body:
        if not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            yield whole if (ROOT / f"{whole.replace('.', '/')}.py").exists() else node.module


def test_a_public_class_name_means_one_thing() -> None:
    homes: dict[str, set[str]] = {}
    for path in MODULES:
        if "architectures" in path.parts:
            continue  # plug-ins, each of which has a class Architecture
        for node in _parsed(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, set()).add(layer_path(path))
    assert not {name: sorted(found) for name, found in homes.items() if len(found) > 1}


def test_nothing_from_a_network_or_a_folder_is_unpickled() -> None:
    found = []
    for path in MODULES:
        nodes = [*ast.walk(_parsed(path))]
        names = [ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)]
        for node in nodes:
            if isinstance(node, ast.ImportFrom):
                names += [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            owner, _, function = name.rpartition(".")
            unpickles = owner in PICKLERS and function in {"load", "loads", "Unpickler"}
            if unpickles and layer_path(path) not in UNPICKLES:
                found.append(f"{path}: {name}")
            if "_object" in function and (owner == "dist" or "torch" in owner):
                found.append(f"{path}: {name} unpickles on every rank")
        for node in nodes:
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
                options = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                if options.get("weights_only") != "True":
                    found.append(f"{path}:{node.lineno}: torch.load without weights_only=True")
    assert not found, "\n".join(found)
