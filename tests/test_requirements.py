"""A Python or a torch that is too old is told in one line as dpbench is imported."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from dpbench import requirements

ROOT = Path(__file__).parents[1]


def run_with_torch(folder: Path, version: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs Python where the torch to be found is of that version."""
    (folder / "torch").mkdir(exist_ok=True)
    (folder / "torch" / "__init__.py").write_text("raise AssertionError('nobody imports it')")
    about = folder / f"torch-{version}.dist-info"
    about.mkdir(exist_ok=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
    environ = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    return subprocess.run(
        [sys.executable, *arguments], env=environ, capture_output=True, text=True, timeout=60
    )


OLD = "dpbench needs torch 2.9 or later, and torch 2.8.1+cu124 is installed; pip install"


def test_an_old_torch_is_an_import_error_in_one_line(tmp_path: Path) -> None:
    ended = run_with_torch(tmp_path, "2.8.1+cu124", "-c", "import dpbench")
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith(f"ImportError: {OLD}")
    ended = run_with_torch(tmp_path, "2.8.1+cu124", "-m", "dpbench", "--help")
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"dpbench: {OLD}")


@pytest.mark.parametrize("version", ["2.9.0", "3.0.0a0+git1234"])
def test_a_torch_that_is_new_enough_is_not_imported_to_find_out(
    tmp_path: Path, version: str
) -> None:
    ended = run_with_torch(tmp_path, version, "-c", "import dpbench, sys; print(*sys.modules)")
    assert ended.returncode == 0, ended.stderr
    assert "torch" not in ended.stdout.split()


def test_an_old_python_is_named_with_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("3.11.0", "4.0.0"):
        monkeypatch.setattr(platform, "python_version", lambda: version)  # noqa: B023
        requirements.check_requirements()
    monkeypatch.setattr(platform, "python_version", lambda: "3.10.4")
    words = "^dpbench needs Python 3.11 or later, and this is 3.10.4$"
    with pytest.raises(ImportError, match=words):
        requirements.check_requirements()


def test_the_package_metadata_asks_for_the_same() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == f">={requirements.PYTHON}"
    assert f"torch>={requirements.TORCH}" in project["dependencies"]
