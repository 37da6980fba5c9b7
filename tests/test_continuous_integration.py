"""The guide, the workflows and make's targets say what the code does."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml

from dpbench.cli.app import app
from dpbench.cli.init import TEMPLATE
from dpbench.options.bridge import file_layers, read
from dpbench.options.check import CheckOptions
from dpbench.run import presets
from dpbench.run.gate.thresholds import thresholds_of
from tests.launch import synthetic

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
GUIDE = (ROOT / "docs" / "continuous-integration.md").read_text()
WORKFLOW = (ROOT / ".github" / "workflows" / "performance.yml").read_text()
GROUP = typer.main.get_command(app)
FOLDED = re.compile(r"run: >\n((?: {10}.*\n)+)")
"""A command of a workflow, on several lines."""


PRETENDED_PYTHON = """#!/bin/sh
echo "$(basename "$0") $*" >> "$CALLS"
case "$*" in
    "-m venv "*) mkdir -p "$3/bin"
        for name in python pip dpbench; do cp "$0" "$3/bin/$name"; done;;
    *"-m alone"*) exit $ALONE;;
    *"-m pytest"*) exit $TOGETHER;;
esac
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


def test_the_workflow_to_copy_checks_out_what_it_installs() -> None:
    (workflow,) = re.findall(r"```yaml\n(name: .*?)```", GUIDE, re.DOTALL)
    steps = yaml.safe_load(workflow)["jobs"]["performance"]["steps"]
    (installed,) = re.findall(r"pip install \./(\S+)", workflow)
    assert installed in {step.get("with", {}).get("path") for step in steps}


@pytest.mark.parametrize("name", ["tests.yml", "performance.yml"])
def test_workflows_may_only_read_the_repository(name: str) -> None:
    text = (ROOT / ".github" / "workflows" / name).read_text()
    assert "permissions:\n  contents: read\n" in text
    assert "secrets." not in text
    assert "pull_request_target" not in text


def test_the_summary_of_a_check_that_could_not_begin_is_no_second_failure(tmp_path: Path) -> None:
    (show,) = (
        step["run"]
        for step in yaml.safe_load(WORKFLOW)["jobs"]["check"]["steps"]
        if "GITHUB_STEP_SUMMARY" in step.get("run", "")
    )
    words = ["env", f"GITHUB_STEP_SUMMARY={tmp_path / 'summary'}", "bash", "-e", "-c", show]
    subprocess.run(words, cwd=tmp_path, check=True)


@pytest.mark.full
def test_the_steps_of_the_action_leave_a_verdict_and_its_status(tmp_path: Path) -> None:
    """Run in a shell, in a repository with a model; ranks are not started."""
    action = yaml.safe_load((ROOT / ".github" / "actions" / "check" / "action.yml").read_text())
    shutil.copy(TEMPLATE, tmp_path / "model.py")
    for words in ("init -q", "add .", "-c user.name=a -c user.email=a@b commit -qm one"):
        subprocess.run(["git", *words.split()], cwd=tmp_path, check=True)
    inputs = {
        "arch": "model.py:make",
        "against-ref": "HEAD",
        "install": "--help",
        "arguments": "--gpus 1 --batch-sizes 8 --steps 4 --repetitions 4 --tolerance 50%",
    }
    outputs: dict[str, str] = {}
    bin = Path(sys.executable).parent
    summary, written = tmp_path / "summary.md", tmp_path / "outputs"
    for step in action["runs"]["steps"]:
        values = {
            name: inputs[found[1]]
            if (found := re.search(r"inputs\.([\w-]+)", text))
            else outputs[text.split(".")[-1].strip(" }")]
            for name, text in step["env"].items()
        }
        places = {"GITHUB_OUTPUT": str(written), "GITHUB_STEP_SUMMARY": str(summary)}
        ended = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", step["run"]],
            cwd=tmp_path,
            env={
                **os.environ,
                **synthetic.VARIABLES,
                **places,
                **values,
                "PATH": f"{bin}:{os.environ['PATH']}",
                "RUNNER_TEMP": str(tmp_path),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        if written.exists():
            outputs = dict(line.split("=", 1) for line in written.read_text().splitlines())
    assert summary.read_text() == Path(outputs["markdown"]).read_text() != ""
    assert outputs["exit-status"] == "0"
    assert Path(outputs["junit"]).exists()


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda p: p.name)
def test_actions_of_others_are_pinned_by_commit(path: Path) -> None:
    assert not re.findall(r"uses: (?!\./)(?!\S+@[0-9a-f]{40} # v)", path.read_text())


needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def make(target: str, folder: Path, **statuses: int) -> tuple[int, list[str]]:
    """The exit status of make on a machine with nothing but a Python, whose pytest exits with these
    `statuses`, and the command lines of that Python and what it installed."""
    python = folder / "python3"
    python.write_text(PRETENDED_PYTHON)
    python.chmod(0o700)
    # A make above this test may have been told a number of workers, and would tell this one.
    inherited = {name: os.environ[name] for name in os.environ if not name.startswith("MAKE")}
    given = {"CALLS": str(folder / "calls"), "TOGETHER": "0", "ALONE": "0"}
    done = subprocess.run(
        ["make", target, f"PYTHON={python}", f"VENV={folder / 'venv'}", "WORKERS=5"],
        cwd=ROOT,
        env=inherited | given | {name: str(status) for name, status in statuses.items()},
        capture_output=True,
        check=False,
    )
    return done.returncode, (folder / "calls").read_text().splitlines()


@needs_make
@pytest.mark.parametrize(("together", "alone"), [(0, 0), (1, 0), (0, 1), (5, 0)])
def test_make_runs_both_halves_of_the_suite_and_fails_if_one_does(
    tmp_path: Path, together: int, alone: int
) -> None:
    """5: pytest found no test."""
    status, (*_, first, second) = make("test", tmp_path, TOGETHER=together, ALONE=alone)
    assert (status == 0) is (together == alone == 0)
    assert first.startswith("python -m pytest -m not full and not alone -n 5 ")
    assert second == "python -m pytest -m alone"


@needs_make
def test_the_two_commands_of_the_readme_set_everything_up_and_sweep_or_test(tmp_path: Path) -> None:
    block, *_ = re.findall(r"^```\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    commands = [line.split("#")[0].strip() for line in block.splitlines()]
    assert commands == ["make sweep", "make test"]
    ran = {}
    for command in commands:
        target = command.removeprefix("make ")
        (folder := tmp_path / target).mkdir()
        status, ran[command] = make(target, folder)
        assert status == 0
        assert ran[command][0].startswith("python3 -m venv ")
    install = "python -m pip install --quiet --constraint constraints.txt --editable"
    assert ran["make sweep"][1:] == [f"{install} .", "dpbench sweep --preset quick"]
    assert ran["make test"][1:3] == [f"{install} .", f"{install} .[dev] timm"]
