"""Each implementation has a file, which is imported for it alone."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from dpbench.measure import implementations
from dpbench.specs.traits import IMPLEMENTATIONS, ImplementationTraits, module_name, read_traits

FOLDER = Path(implementations.__file__).parent
SHARED = {"__init__", "model", "comm_hooks"}
"""Files that are there for the others."""


@pytest.mark.parametrize("name", list(IMPLEMENTATIONS))
def test_its_file_has_its_traits_and_wraps_it_whether_or_not_its_package_is_installed(
    name: str,
) -> None:
    module = importlib.import_module(f"{implementations.__name__}.{module_name(name)}")
    assert ImplementationTraits(name=name, **module.TRAITS) == IMPLEMENTATIONS[name]
    assert callable(module.wrap)
    assert module.__dict__.get(IMPLEMENTATIONS[name].requires or "") is None


def test_every_file_is_an_implementation_or_shared_by_them() -> None:
    """A file whose literal is not found, say for its layout, would be missing in silence."""
    files = {path.stem for path in FOLDER.glob("*.py")}
    assert files == SHARED | {module_name(name) for name in IMPLEMENTATIONS}
    orders = [traits.order for traits in IMPLEMENTATIONS.values()]
    assert len({*orders}) == len(orders)


def test_traits_are_read_without_importing_the_file(tmp_path: Path) -> None:
    file = tmp_path / "new_one.py"
    file.write_text('raise SystemExit\n\nTRAITS = {\n    "order": 1,\n    "description": "x",\n}\n')
    assert read_traits(file) == ImplementationTraits(name="new-one", order=1, description="x")
    file.write_text('"""Shared."""\n')
    assert read_traits(file) is None
