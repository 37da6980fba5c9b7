"""What `pip install dpbench` brings: one top-level name, and all that the README shows."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import dpbench
from tests.documentation import ROOT
from tests.documentation.outputs import HEAD, without_charts

READING = ("report", "compare", "explain", "project", "export", "plot")
"""Commands that only read results: all those of the README are run as they stand."""
pytestmark = pytest.mark.slow
README = (ROOT / "README.md").read_text()


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
    _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source)
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    _pip("install", "--no-deps", "--no-index", "--target", folder, wheel)
    return folder


def _pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True)


def _run(installed: Path, folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    """Runs `dpbench …` of the installed wheel, and of nothing else, in a folder."""
    program, *arguments = shlex.split(HEAD.sub("", command))
    assert program == "dpbench"
    finished = subprocess.run(
        [sys.executable, "-m", "dpbench", *arguments, *without_charts(arguments[0])],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(installed), "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, f"{command}: {finished.stderr}"
    return finished


def _shown() -> Iterator[str]:
    """The README's commands that read results, without prompt and comment."""
    for block in re.findall(r"^```\n(.*?)^```$", README, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            command = re.sub(r"\s#.*", "", line.removeprefix("$ "))
            if command.startswith(tuple(f"dpbench {name} results/examples" for name in READING)):
                yield command


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
        "dpbench/_shipped/results/published/weak_scaling.csv",
    } <= names
    assert not {name for name in names if "/report/" in name and "/_shipped/" in name}
    assert {str(path.relative_to(ROOT)) for path in (ROOT / "dpbench").rglob("*.py")} <= names


def test_its_commands_run_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    assert _run(installed, tmp_path, "dpbench --version").stdout.split() == [
        "dpbench",
        dpbench.__version__,
    ]
    assert "mnist_cnn" in _run(installed, tmp_path, "dpbench list").stdout
    _run(installed, tmp_path, "dpbench init --example")
    commands = list(_shown())
    assert len(commands) >= 4
    for command in commands:
        _run(installed, tmp_path, command)


def test_it_measures_a_model_of_its_own(installed: Path, tmp_path: Path) -> None:
    finished = _run(
        installed,
        tmp_path,
        "dpbench sweep --arch linear --implementations ddp --backends shm --gpus 2 --group-sizes 2 "
        "--batch-sizes 8 --warmup 1 --steps 2 --repetitions 1",
    )
    assert "report/index.html" in finished.stdout


def test_the_version_is_declared_once() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" not in declared
    assert dpbench.__version__ in (ROOT / "CHANGELOG.md").read_text()
    assert f"version: {dpbench.__version__}\n" in (ROOT / "CITATION.cff").read_text()
