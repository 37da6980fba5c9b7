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
    ("files", "temporary", "codec"),
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
LARGEST_FUNCTION = 80
LARGEST_FOLDER = 30
UNPICKLES = {
    # From a file in a folder that only its owner can enter, written by the process that started it.
    "training/dp_train.py",
}
"""Modules that may unpickle; nothing that comes over a network or out of a results folder is."""
PICKLERS = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
NAMED_TWICE = {
    *("Bucket", "Network", "Prepared", "Row", "Series", "Replicas"),
}
"""Public names that two classes had when the rule was made; none may come to them."""
MAY_READ_PRIVATE = {
    "launch/test_fork_world.py",
    "parallel/ddp/test_wrapper.py",
}
"""Test files that read private names of what they test; none may come to them."""


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


def test_modules_and_functions_are_short() -> None:
    long = []
    for path in [*MODULES, *ARCHITECTURES]:
        if path.read_text().count("\n") > LARGEST_MODULE:
            long.append(f"{path} has more than {LARGEST_MODULE} lines")
        for node in ast.walk(_parsed(path)):
            if isinstance(node, ast.FunctionDef):
                # Without its parameters: those of a command are a table of its options.
                length = (node.end_lineno or node.lineno) - node.body[0].lineno + 1
                if length > LARGEST_FUNCTION:
                    long.append(f"{path}: {node.name} has {length} lines")
    assert not long, "\n".join(long)


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


def test_a_docstring_begins_with_what_it_describes() -> None:
    """Nor may the string below a field go on from its name: "Of the optimizer" needs a noun."""
    for path in [*MODULES, *ARCHITECTURES]:
        fragments = [text for text in _docstrings(path) if FRAGMENT.match(text)]
        assert not fragments, f"{path}: begin with the noun or the verb: {fragments}"


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


def test_a_folder_has_few_enough_entries_to_be_read() -> None:
    package = ROOT / "dpbench"
    for folder in {path.parent for path in package.rglob("*.py")}:
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
    assert {*twice} <= NAMED_TWICE, twice


def test_no_test_reads_what_is_private() -> None:
    """A test that does breaks with every change inside, and shows nothing that a caller sees."""
    private = {name for path in [*MODULES, *ARCHITECTURES] for name in _defined(path)}
    readers = {}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if names := sorted(private & {*_read_of_others(path)}):
            readers[path.relative_to(ROOT / "tests").as_posix()] = names
    added = {name: names for name, names in readers.items() if name not in MAY_READ_PRIVATE}
    assert not added, "\n".join(f"{name} reads {', '.join(names)}" for name, names in added.items())
    assert not MAY_READ_PRIVATE - readers.keys(), "these read nothing private any more"


def _defined(path: Path) -> Iterator[str]:
    """The private names of a module: functions, classes, variables, attributes."""
    for node in ast.walk(_parsed(path)):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                pass
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                pass
            case _:
                continue
        if name.startswith("_") and not name.endswith("_"):  # __iter__, _repr_html_
            yield name


def _read_of_others(path: Path) -> Iterator[str]:
    """The names that a file imports from dpbench, reads of another object, or patches.

    Modules of architectures/ whose name begins with an underscore are shared, not private.
    """
    for node in ast.walk(_parsed(path)):
        match node:
            case ast.ImportFrom(module="dpbench.architectures"):
                pass
            case ast.ImportFrom(module=str(module)) if module.startswith("dpbench"):
                yield from (alias.name for alias in node.names)
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                pass
            case ast.Attribute(attr=name):
                yield name
            case ast.Call(
                func=ast.Attribute(attr="setattr"), args=[_, ast.Constant(value=name), *_]
            ):
                yield str(name)


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
