"""The guide on continuous integration and the workflows say what the code does."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dpbench.cli.app import commands
from dpbench.options.check import CheckOptions
from dpbench.options.reading import read_options
from dpbench.run.init import MODEL_TEMPLATE
from tests.launch import synthetic

ROOT = Path(__file__).parent.parent
GUIDE = (ROOT / "docs" / "continuous-integration.md").read_text()
WORKFLOW = (ROOT / ".github" / "workflows" / "performance.yml").read_text()
FOLDED = re.compile(r"run: >\n((?: {10}.*\n)+)")
"""A command of a workflow, on several lines."""


def test_the_command_of_the_workflow_parses() -> None:
    (command,) = FOLDED.findall(WORKFLOW)
    name, *arguments = shlex.split(command)[1:]
    commands().commands[name].make_context(name, arguments)


def test_the_file_of_thresholds_is_valid(tmp_path: Path) -> None:
    (content,) = re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL)
    path = tmp_path / "check.toml"
    path.write_text(content)
    options = read_options(CheckOptions, {"config": path, "against_ref": "main"})
    assert options.tolerances == {"images_per_second": 0.03, "peak_memory_bytes": 0.1}
    assert options.strict


def test_the_workflow_to_copy_checks_out_what_it_installs() -> None:
    (workflow,) = re.findall(r"```yaml\n(name: .*?)```", GUIDE, re.DOTALL)
    steps = yaml.safe_load(workflow)["jobs"]["performance"]["steps"]
    (installed,) = re.findall(r"pip install \./(\S+)", workflow)
    assert installed in {step.get("with", {}).get("path") for step in steps}


@pytest.mark.full
@pytest.mark.timeout(600)  # eight commands, each of which imports torch
def test_the_steps_of_the_action_leave_a_verdict_and_its_status(tmp_path: Path) -> None:
    """Run in a shell, in a repository with a model; ranks are not started."""
    action = yaml.safe_load((ROOT / ".github" / "actions" / "check" / "action.yml").read_text())
    shutil.copy(MODEL_TEMPLATE, tmp_path / "model.py")
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
def test_actions_of_others_are_pinned_by_commit_and_workflows_may_only_read(path: Path) -> None:
    text = path.read_text()
    assert not re.findall(r"uses: (?!\./)(?!\S+@[0-9a-f]{40} # v)", text)
    assert "secrets." not in text
    assert "pull_request_target" not in text
    assert path.parent.name != "workflows" or "permissions:\n  contents: read\n" in text
