"""The guide, the workflows and make's targets say what the code does."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import typer

from dpbench.analysis.metrics import METRICS
from dpbench.cli.app import app
from dpbench.options.bridge import file_layers, read
from dpbench.options.check import CheckOptions
from dpbench.run import presets
from dpbench.run.gate.thresholds import thresholds_of

ROOT = Path(__file__).parent.parent
GUIDE = (ROOT / "docs" / "continuous-integration.md").read_text()
WORKFLOW = (ROOT / ".github" / "workflows" / "performance.yml").read_text()
GROUP = typer.main.get_command(app)
FOLDED = re.compile(r"run: >\n((?: {10}.*\n)+)")
"""A command of a workflow, on several lines."""


PRETENDED_PYTHON = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/runs"
case "$*" in *"-m alone"*) exit $ALONE;; *) exit $TOGETHER;; esac
"""


def test_the_command_of_the_workflow_parses() -> None:
    (command,) = FOLDED.findall(WORKFLOW)
    name, *arguments = shlex.split(command)[1:]
    GROUP.commands[name].make_context(name, arguments)  # type: ignore[attr-defined]


def test_the_file_of_thresholds_is_valid(tmp_path: Path) -> None:
    (content,) = re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL)
    path = tmp_path / "check.toml"
    path.write_text(content)
    options = read(CheckOptions, *file_layers(CheckOptions, {"config": path}, presets.find))
    found = thresholds_of(options)
    assert found.tolerances == {"images_per_second": 0.03, "peak_memory_bytes": 0.1}
    assert found.strict


def test_every_metric_is_named() -> None:
    for metric in METRICS:
        assert f"`{metric}`" in GUIDE or f"`_{metric.rpartition('_')[2]}`" in GUIDE, metric


@pytest.mark.parametrize("name", ["tests.yml", "performance.yml"])
def test_workflows_may_only_read_the_repository(name: str) -> None:
    text = (ROOT / ".github" / "workflows" / name).read_text()
    assert "permissions:\n  contents: read\n" in text
    assert "secrets." not in text
    assert "pull_request_target" not in text


needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def make(target: str, folder: Path, **statuses: int) -> tuple[int, list[str]]:
    """The exit status of make, whose pytest exits with these, and each command line of pytest."""
    (folder / "bin").mkdir()
    python = folder / "bin/python"
    python.write_text(PRETENDED_PYTHON)
    python.chmod(0o700)
    for stamp in (".runs", ".installed"):
        (folder / stamp).touch()
    # A make above this test may have been told a number of workers, and would tell this one.
    inherited = {name: os.environ[name] for name in os.environ if not name.startswith("MAKE")}
    done = subprocess.run(
        ["make", target, f"VENV={folder}", "WORKERS=5"],
        cwd=ROOT,
        env=inherited | {name: str(status) for name, status in statuses.items()},
        capture_output=True,
        check=False,
    )
    return done.returncode, (folder / "bin/runs").read_text().splitlines()


@needs_make
@pytest.mark.parametrize(("together", "alone"), [(0, 0), (1, 0), (0, 1), (5, 0)])
def test_make_runs_both_halves_of_the_suite_and_fails_if_one_does(
    tmp_path: Path, together: int, alone: int
) -> None:
    """5: pytest found no test."""
    status, (first, second) = make("test", tmp_path, TOGETHER=together, ALONE=alone)
    assert (status == 0) is (together == alone == 0)
    assert first.startswith("-m pytest -m not full and not alone -n 5 ")
    assert second == "-m pytest -m alone"


@needs_make
@pytest.mark.parametrize("status", [0, 1])
def test_make_runs_the_long_tests_and_fails_if_one_does(tmp_path: Path, status: int) -> None:
    done, runs = make("full", tmp_path, TOGETHER=status)
    assert (done == 0) is (status == 0)
    assert [run.partition(" --")[0] for run in runs] == ["-m pytest -m full -n 5"]
