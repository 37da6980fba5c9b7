"""Each implementation has a file, which is imported for it alone."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from dpbench.measure import implementations
from dpbench.measure.implementations import FILES, wrapper
from dpbench.traits import IMPLEMENTATIONS


def test_every_implementation_has_a_file() -> None:
    assert set(FILES) == set(IMPLEMENTATIONS)


@pytest.mark.parametrize("name", list(IMPLEMENTATIONS))
def test_its_file_wraps_it_whether_or_not_its_package_is_installed(name: str) -> None:
    assert callable(wrapper(name))


def test_a_package_is_imported_when_a_module_is_wrapped() -> None:
    """By the function, not with the file."""
    folder = Path(implementations.__file__).parent
    for name, traits in IMPLEMENTATIONS.items():
        if traits.requires is None:
            continue
        tree = ast.parse((folder / f"{FILES[name]}.py").read_text())
        imported = {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
        assert traits.requires not in imported
        assert traits.requires in {
            (node.module or "").split(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
        }


def test_files_of_the_package_do_not_import_one_another() -> None:
    """All but those that are there for the others."""
    shared = {"model", "comm_hooks", "composable", "threads"}
    for file in set(FILES.values()):
        module = sys.modules[wrapper(_first(file)).__module__]
        source = Path(module.__file__ or "").read_text()
        for node in ast.walk(ast.parse(source)):
            prefix = "dpbench.measure.implementations."
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(prefix):
                assert (node.module or "").removeprefix(prefix) in shared


def _first(file: str) -> str:
    return next(name for name, own in FILES.items() if own == file)
