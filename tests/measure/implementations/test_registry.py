"""Each implementation has a file, which is imported for it alone."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from dpbench.errors import UsageError
from dpbench.measure import implementations
from dpbench.specs.traits import BUILT_IN, ImplementationTraits, read_traits

FOLDER = Path(implementations.__file__).parent
SHARED = {"__init__", "model", "comm_hooks"}
"""Files that are there for the others."""


@pytest.mark.parametrize("name", list(BUILT_IN))
def test_its_file_has_its_traits_and_wraps_it_whether_or_not_its_package_is_installed(
    name: str,
) -> None:
    module = importlib.import_module(f"{implementations.__name__}.{name.replace('-', '_')}")
    assert ImplementationTraits(name=name, **module.TRAITS) == BUILT_IN[name]
    assert callable(module.wrap)
    assert module.__dict__.get(BUILT_IN[name].requires or "") is None


def test_every_file_is_an_implementation_or_shared_by_them() -> None:
    """A file whose literal is not found, say for its layout, would be missing in silence."""
    files = {path.stem for path in FOLDER.glob("*.py")}
    assert files == SHARED | {name.replace("-", "_") for name in BUILT_IN}
    orders = [traits.order for traits in BUILT_IN.values()]
    assert len({*orders}) == len(orders)


WRAP = "def wrap(module, spec, rank): ...\n"


def test_traits_are_read_without_importing_the_file(tmp_path: Path) -> None:
    file = tmp_path / "new_one.py"
    literal = 'TRAITS = {\n    "order": 1,\n    "description": "x",\n}'
    file.write_text(f"raise SystemExit\n\n{literal}\n\n{WRAP}")
    assert read_traits(file) == ImplementationTraits(name="new-one", order=1, description="x")
    file.write_text('"""A helper of others."""\n')
    assert read_traits(file) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (WRAP, "the file has no TRAITS"),
        (f'TRAITS = {{"order": 1}}\n{WRAP}', "TRAITS: .*missing .*'description'"),
        (f"TRAITS = dict(order=1)\n{WRAP}", "TRAITS: .*; expected a literal"),
    ],
)
def test_a_file_that_is_half_an_implementation_is_an_error(
    text: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(text)
    with pytest.raises(UsageError, match=rf"mine\.py: {message}"):
        read_traits(file)
