"""The architecture of the code, as rules that a test can break."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = sorted((ROOT / "dpbench").rglob("*.py"))
ARCHITECTURES = sorted((ROOT / "architectures").rglob("*.py"))
LAYERS = (
    ("errors", "units", "messages", "requirements"),
    ("files", "temporary", "codec", "values"),
    ("specs",),
    ("records",),
    ("store", "architecture"),
    ("parallel",),
    ("rendezvous",),
    ("data",),
    ("measure",),
    ("launch",),
    ("training",),
    ("analysis",),
    ("report",),
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
    "run/sweep/grid": {"dpbench.store"},
    "analysis": {"torch", "dpbench.parallel", "dpbench.measure", "dpbench.launch"},
    "report": {"torch", "dpbench.parallel", "dpbench.measure", "dpbench.launch"},
    "store": {"torch", "pandas", "numpy"},
}
FRAGMENT = re.compile(
    r"(Of|Its|Whoever|As of)\s|(And|With|Without|For|In|Not|Behind|Also|To)\s[a-z]"
)
"""Beginnings of a text that has no subject."""
LARGEST_MODULE = 600
LARGEST_FUNCTION = 60
LARGEST_FOLDER = 30
NAMED_TWICE = {"Bucket", "Network", "Prepared", "Row", "Series"}
"""Public names that two classes had when the rule was made; none may come to them."""
FILES_THAT_NAME = {"bucket_cap_mb": 8, "comm_hook": 8, "data_workers": 6, "learning_rate_rule": 12}
"""Settings, and in how many modules each may be named: its declaration, what obeys it, and little
else. `parallel` and the implementations, which are what the settings are for, do not count."""


def layer_of(path: Path) -> str:
    return path.relative_to(ROOT / "dpbench").with_suffix("").parts[0]


def layer_path(path: Path) -> str:
    return path.relative_to(ROOT / "dpbench").as_posix()


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imported(path: Path) -> tuple[str, ...]:
    """Every module that a file imports, at any depth, as "dpbench.store" for names from it."""
    return tuple(_imported(path))


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(_parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield "." * node.level + node.module
            if node.module == "dpbench":
                yield from (f"dpbench.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    own = layer_of(path)
    for name in imported(path):
        parts = name.split(".")
        if parts[0] == "dpbench" and len(parts) > 1 and parts[1] in HEIGHT:
            same_package = parts[1] == own
            assert same_package or HEIGHT[parts[1]] < HEIGHT[own], f"{path} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_forbidden_imports_are_absent(path: Path) -> None:
    own = layer_path(path)
    forbidden = {name for part, names in NEVER.items() if own.startswith(part) for name in names}
    for name in imported(path):
        assert not any(name == f or name.startswith(f"{f}.") for f in forbidden), name


@pytest.mark.parametrize("path", ARCHITECTURES, ids=lambda path: path.stem)
def test_architectures_import_torch_only(path: Path) -> None:
    for name in imported(path):
        known = name.split(".")[0] in {"torch", *sys.stdlib_module_names}
        assert known or name.startswith("."), f"{path} imports {name}"


@pytest.mark.parametrize(
    "path", [*MODULES, *ARCHITECTURES], ids=lambda path: str(path.relative_to(ROOT))
)
def test_modules_and_functions_are_short(path: Path) -> None:
    source = path.read_text()
    assert source.count("\n") <= LARGEST_MODULE
    for node in ast.walk(_parsed(path)):
        if isinstance(node, ast.FunctionDef):
            # Without its parameters: those of a command are a table of its options.
            length = (node.end_lineno or node.lineno) - node.body[0].lineno + 1
            assert length <= LARGEST_FUNCTION, f"{node.name} has {length} lines"


def test_no_module_is_a_box_of_leftovers() -> None:
    names = {path.stem for path in MODULES}
    assert not names & {"utils", "util", "helpers", "common", "misc"}


def test_one_module_lays_tables_out() -> None:
    """Every other one makes a report.table.Table, which all formats are written from."""
    callers = {layer_path(path) for path in MODULES if "tabulate" in imported(path)}
    assert callers == {"report/terminal.py"}


def test_every_module_says_what_it_is() -> None:
    for path in [*MODULES, *ARCHITECTURES]:
        assert ast.get_docstring(_parsed(path)), f"{path} has no docstring"


@pytest.mark.parametrize(
    "path", [*MODULES, *ARCHITECTURES], ids=lambda path: str(path.relative_to(ROOT))
)
def test_a_docstring_begins_with_what_it_describes(path: Path) -> None:
    """Nor may the string below a field go on from its name: "Of the optimizer" needs a noun."""
    begun = [text for text in _docstrings(path) if FRAGMENT.match(text)]
    assert not begun, f"{path}: begin with the noun or the verb: {begun}"


def _docstrings(path: Path) -> Iterator[str]:
    """The strings that stand alone: docstrings, and those below fields and constants."""
    for node in ast.walk(_parsed(path)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield text.strip()


@pytest.mark.parametrize(
    "arguments", [["--help"], ["sweep", "--help"], ["train", "--help"], ["--version"]]
)
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys; from dpbench.cli.app import run; status = run(sys.argv[1:]);"
        "heavy = {'torch', 'numpy', 'pandas', 'matplotlib', 'scipy', 'sklearn', 'tabulate',"
        "'yaml'};"
        "print(sorted(heavy & set(sys.modules)), status, file=sys.stderr)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    assert finished.stderr.strip() == "[] 0"


@pytest.mark.parametrize("arguments", [["sweep", "--batch-sizes", "32,abc"], ["train", "--lr=x"]])
def test_a_usage_error_is_found_without_importing_torch(arguments: list[str]) -> None:
    code = (
        "import sys; from dpbench.cli.app import run; status = run(sys.argv[1:]);"
        "print('torch' in sys.modules, status)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    assert finished.stdout.strip() == "False 2"


def _folders() -> Iterator[tuple[str, Path]]:
    package = ROOT / "dpbench"
    for folder in (package, *package.rglob("*")):
        if folder.is_dir() and any(folder.glob("*.py")) and not folder.is_symlink():
            name = folder.relative_to(package).as_posix()
            yield "" if name == "." else name, folder


@pytest.mark.parametrize(("name", "folder"), [*_folders()], ids=lambda one: str(one))
def test_a_folder_has_few_enough_entries_to_be_read(name: str, folder: Path) -> None:
    entries = [path.name for path in folder.iterdir() if path.name != "__pycache__"]
    assert len(entries) <= LARGEST_FOLDER, sorted(entries)


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
    twice = {name: sorted(found) for name, found in homes.items() if len(found) > 1}
    assert {*twice} - NAMED_TWICE == set(), twice
    assert NAMED_TWICE - {*twice} == set(), "take these out of NAMED_TWICE"


@pytest.mark.parametrize(("setting", "most"), FILES_THAT_NAME.items())
def test_a_setting_is_named_where_it_is_declared_and_where_it_is_obeyed(
    setting: str, most: int
) -> None:
    word = re.compile(rf"\b{setting}\b")
    naming = [
        layer_path(path)
        for path in MODULES
        if word.search(path.read_text())
        and not layer_path(path).startswith(("parallel/", "measure/implementations/"))
    ]
    assert len(naming) <= most, naming
