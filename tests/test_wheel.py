"""What `pip install dpbench` brings: one top-level name, and all that the README shows."""

from __future__ import annotations

import json
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
from tools.docs import ROOT
from tools.docs.outputs import HEAD, without_charts

READING = ("report", "compare", "explain", "project", "export", "plot")
"""Commands that only read results: all those of the README are run as they stand."""
RUN_ALL = """
import contextlib, io, json, sys
import dpbench
from dpbench.cli.app import run
printed = []
for words in json.load(sys.stdin):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = run(words)
    assert status == 0, (words, status)
    printed.append(out.getvalue())
print(json.dumps({"home": dpbench.__file__, "printed": printed}))
"""
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


def _run(installed: Path, folder: Path, *commands: str) -> list[str]:
    """What each `dpbench …` prints, of the installed wheel and of nothing else, in a folder.

    They run in one process, as importing torch takes longer than any of them.
    """
    words = [shlex.split(HEAD.sub("", command)) for command in commands]
    assert {program for program, *_ in words} == {"dpbench"}
    lines = [[*arguments, *without_charts(arguments[0])] for _, *arguments in words]
    finished = subprocess.run(
        [sys.executable, "-c", RUN_ALL],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(installed), "PYTHONSAFEPATH": "1"},
        input=json.dumps(lines),
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr
    answer = json.loads(finished.stdout)
    assert Path(answer["home"]).is_relative_to(installed)
    return list(answer["printed"])


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
        "dpbench/_shipped/results/published/scaling_series.csv",
        "dpbench/_shipped/results/published/weak_scaling.csv",
    } <= names
    assert not {name for name in names if "/report/" in name and "/_shipped/" in name}
    assert {str(path.relative_to(ROOT)) for path in (ROOT / "dpbench").rglob("*.py")} <= names


@pytest.mark.full
def test_its_commands_run_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    shown = list(_shown())
    assert len(shown) >= 4
    of_its_own = (
        "dpbench sweep --arch linear --implementations ddp --backends shm --gpus 2 --group-sizes 2 "
        "--batch-sizes 8 --warmup 1 --steps 2 --repetitions 1"
    )
    example = "dpbench init --example"
    version, names, _, swept, *_ = _run(
        installed, tmp_path, "dpbench --version", "dpbench list", example, of_its_own, *shown
    )
    assert version.split() == ["dpbench", dpbench.__version__]
    assert "mnist_cnn" in names
    assert "report/index.html" in swept


def test_the_version_is_declared_once() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" not in declared
    assert dpbench.__version__ in (ROOT / "CHANGELOG.md").read_text()
    assert f"version: {dpbench.__version__}\n" in (ROOT / "CITATION.cff").read_text()
