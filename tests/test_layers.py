"""The architecture of the code, as rules that a test can break."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = sorted((ROOT / "dpbench").rglob("*.py"))
ARCHITECTURES = sorted((ROOT / "architectures").rglob("*.py"))
LAYERS = (
    ("errors", "units", "printable", "process_identity"),
    ("files", "temporary", "codec", "learning_rate", "placement", "shares", "values"),
    ("json_schema",),
    ("traits", "settings"),
    ("specs",),
    ("training_spec", "exclusion"),
    ("records", "environment"),
    ("collectives",),
    ("plausibility",),
    ("record_log", "live"),
    ("store", "architecture"),
    ("parallel",),
    ("rendezvous",),
    ("data",),
    ("measure",),
    ("launch",),
    ("grid", "training"),
    ("analysis",),
    ("report",),
    ("cli",),
    ("api",),
    ("__main__", "__init__"),
)
HEIGHT = {name: height for height, layer in enumerate(LAYERS) for name in layer}
NEVER = {
    # A library that can be lifted out.
    "parallel": {f"dpbench.{name}" for name in HEIGHT if name != "parallel"},
    "grid": {"dpbench.store"},
    "analysis": {"torch", "dpbench.parallel", "dpbench.measure", "dpbench.launch", "dpbench.grid"},
    "report": {"torch", "dpbench.parallel", "dpbench.measure", "dpbench.launch", "dpbench.grid"},
    "environment": {"torch"},
    "store": {"torch", "pandas", "numpy"},
}
LARGEST_MODULE = 600
LARGEST_FUNCTION = 60


def layer_of(path: Path) -> str:
    return path.relative_to(ROOT / "dpbench").with_suffix("").parts[0]


def layer_path(path: Path) -> str:
    return path.relative_to(ROOT / "dpbench").as_posix()


def imported(path: Path) -> Iterator[str]:
    """Every module that a file imports, at any depth, as "dpbench.store" for names from it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
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
    forbidden = NEVER.get(layer_of(path), set())
    for name in imported(path):
        assert not any(name == f or name.startswith(f"{f}.") for f in forbidden), name


@pytest.mark.parametrize("path", ARCHITECTURES, ids=lambda path: path.stem)
def test_architectures_import_torch_only(path: Path) -> None:
    for name in imported(path):
        known = name.split(".")[0] in {"torch", "architectures", *sys.stdlib_module_names}
        assert known, f"{path} imports {name}"


@pytest.mark.parametrize(
    "path", [*MODULES, *ARCHITECTURES], ids=lambda path: str(path.relative_to(ROOT))
)
def test_modules_and_functions_are_short(path: Path) -> None:
    source = path.read_text()
    assert source.count("\n") <= LARGEST_MODULE
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            # Without its parameters: those of a command are a table of its options.
            length = (node.end_lineno or node.lineno) - node.body[0].lineno + 1
            assert length <= LARGEST_FUNCTION, f"{node.name} has {length} lines"


def test_no_module_is_a_box_of_leftovers() -> None:
    names = {path.stem for path in MODULES}
    assert not names & {"utils", "util", "helpers", "common", "misc"}


def test_one_module_lays_tables_out() -> None:
    """Every other one makes a report.table.Table, which all formats are written from."""
    callers = {layer_path(path) for path in MODULES if "tabulate" in {*imported(path)}}
    assert callers == {"report/__init__.py", "report/formats.py", "report/terminal.py"}


def test_every_module_says_what_it_is() -> None:
    for path in [*MODULES, *ARCHITECTURES]:
        assert ast.get_docstring(ast.parse(path.read_text())), f"{path} has no docstring"


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
