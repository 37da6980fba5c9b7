"""What `pip install dpbench` brings: one top-level name, and all that the README shows."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import dpbench
from tools.docs import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the files under version control, not from what else lies in the checkout."""
    source = tmp_path_factory.mktemp("source")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, source / name)
    folder = tmp_path_factory.mktemp("wheel")
    build = f"from setuptools import build_meta; build_meta.build_wheel({str(folder)!r})"
    done = subprocess.run([sys.executable, "-c", build], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what installing the wheel puts into site-packages."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def test_a_wheel_installs_one_name(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    assert tops == {"dpbench", f"dpbench-{dpbench.__version__}.dist-info"}


def test_it_has_the_architectures_the_example_and_the_types(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {
        "dpbench/py.typed",
        "dpbench/_shipped/architectures/mlp.py",
        "dpbench/_shipped/results/examples/two-cores/trials.jsonl",
        "dpbench/_shipped/results/published/scaling_series.csv",
        "dpbench/_shipped/results/published/weak_scaling.csv",
    } <= names
    assert not {name for name in names if "/report/" in name and "/_shipped/" in name}
    assert {str(path.relative_to(ROOT)) for path in (ROOT / "dpbench").rglob("*.py")} <= names


@pytest.mark.full
def test_its_commands_run_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    def python(*words: str) -> str:
        """What Python prints with the installed wheel and no other dpbench."""
        environ = os.environ | {"PYTHONPATH": str(installed), "PYTHONSAFEPATH": "1"}
        done = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=environ, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    home = Path(python("-c", "import dpbench; print(dpbench.__file__)").strip())
    assert home.is_relative_to(installed)
    printed = {
        words.split()[0]: python("-m", "dpbench", *words.split())
        for words in (
            "--version",
            "list",
            "init --example",
            "sweep --arch linear --implementations ddp --backends shm --gpus 2 --group-sizes 2 "
            "--batch-sizes 8 --warmup 1 --steps 2 --repetitions 1",
            "report results/examples/two-cores",
            "project results/examples/two-cores",
        )
    }
    assert printed["--version"].split() == ["dpbench", dpbench.__version__]
    assert "mnist_cnn" in printed["list"]
    assert "report/index.html" in printed["sweep"]
    assert "torch-ddp" in printed["report"]


def test_the_version_is_declared_once() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" not in declared
    assert dpbench.__version__ in (ROOT / "CHANGELOG.md").read_text()
    assert f"version: {dpbench.__version__}\n" in (ROOT / "CITATION.cff").read_text()
