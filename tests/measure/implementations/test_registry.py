"""Each implementation has a file, which is imported for it alone."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dpbench.measure import implementations
from dpbench.specs.traits import IMPLEMENTATIONS, ImplementationTraits, module_name, read_traits

ROOT = Path(__file__).parents[3]
FOLDER = Path(implementations.__file__).parent
SHARED = {"__init__", "model", "comm_hooks", "torch_wrapper"}
"""Files that are there for the others."""

ADDED = '''"""`ddp-again`: dpbench's DistributedDataParallel once more."""

from dpbench.measure.implementations.ddp import wrap

TRAITS = {
    "order": 25,
    "description": "the same as ddp, in one file",
    "can_leave_out_sync": True,
}
'''


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


@pytest.fixture
def with_one_more(tmp_path: Path) -> Path:
    """A copy of dpbench to which one file was added."""
    for name in ("dpbench", "architectures"):
        without = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=without)
    (tmp_path / "dpbench/measure/implementations/ddp_again.py").write_text(ADDED)
    return tmp_path


def _dpbench(folder: Path, *arguments: str) -> str:
    finished = subprocess.run(
        [sys.executable, "-m", "dpbench", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    return finished.stdout


@pytest.mark.slow
def test_one_file_is_all_that_an_implementation_takes(with_one_more: Path) -> None:
    """Help, the list, the plan, the processes, the proof and the table have it."""
    assert "ddp-again" in _dpbench(with_one_more, "sweep", "--help")
    assert "the same as ddp, in one file" in _dpbench(with_one_more, "list")
    printed = _dpbench(
        with_one_more,
        *("sweep", "--implementations", "ddp-again", "--backends", "gloo", "--group-sizes", "2"),
        *("--arch", "mlp", "--batch-sizes", "8", "--warmup", "1", "--steps", "3", "--gpus", "2"),
        *("--repetitions", "1", "--oversubscribe", "--no-charts", "--quiet", "--json"),
    )
    rows: list[dict[str, Any]] = json.loads(printed)
    found = {(row["implementation"], row["group_size"]): row for row in rows}
    assert found["ddp-again", 2]["status"] == "completed"
    assert found["ddp-again", 2]["verified"] is True
