"""The sbatch script in docs/launch.md: bash can read it, and its options exist."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from dpbench.cli.app import commands
from dpbench.launch import torchrun

PAGE = (Path(__file__).parent.parent / "docs" / "launch.md").read_text()
SWEEP, TRAIN = re.findall(r"^```bash\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
"""The script, and the last command of it for a training."""
SCRIPTS = {"sweep": SWEEP, "train": f"{SWEEP[: SWEEP.index('srun ')]}{TRAIN}"}
SLURM = {"SLURM_JOB_NODELIST": "node[7-8]", "SLURM_NNODES": "2", "SLURM_JOB_ID": "40001"}
PROGRAMS = {
    "scontrol": """#!/bin/sh
[ "$*" = "show hostnames node[7-8]" ] && printf 'node7\\nnode8\\n'
""",
    "srun": """#!/bin/sh
while [ "${1#--}" != "$1" ]; do shift; done
for node in 0 1; do SLURM_NODEID=$node "$@" || exit; done
""",
    "dpbench": """#!/bin/sh
printf '%s ' "$DPBENCH_TOKEN" "$@"
printf '\\n'
""",
}
"""Stand-ins: srun runs the tasks one after the other, dpbench prints its token and its words."""


def started(script: str, folder: Path) -> list[list[str]]:
    """The token and the words that dpbench gets on each node."""
    for name, text in PROGRAMS.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    finished = subprocess.run(
        ["bash"],
        input=script,
        cwd=folder,
        env={**SLURM, "PATH": f"{folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert finished.stderr == ""
    return [line.split() for line in finished.stdout.splitlines()]


@pytest.mark.parametrize("name", SCRIPTS)
def test_each_node_starts_the_same_command_with_its_own_rank(name: str, tmp_path: Path) -> None:
    (token, *first), (other, *second) = started(SCRIPTS[name], tmp_path)
    assert re.fullmatch(r"[0-9a-f]{32}", token)
    assert token == other
    assert token not in first
    place = first.index("--node-rank") + 1
    assert (first[place], second[place]) == ("0", "1")
    assert first[:place] + first[place + 1 :] == second[:place] + second[place + 1 :]
    assert first[first.index("--rdzv-endpoint") + 1] == f"node7:{15000 + 40001 % 15000}"


@pytest.mark.parametrize("name", SCRIPTS)
def test_its_options_exist(name: str, tmp_path: Path) -> None:
    (tmp_path / "results" / "dpbench-40001").mkdir(parents=True)  # of a job that is requeued
    (_, command, *words), _ = started(SCRIPTS[name], tmp_path)
    if name == "train":
        assert command == "launch"
        chosen = torchrun.read_arguments(words)
        assert (chosen.module, chosen.training_script) == (True, "dpbench")
        command, *words = chosen.training_script_args
    assert command == name
    assert "--resume" in words
    known = {each for option in commands().commands[name].params for each in option.opts}
    assert {word for word in words if word.startswith("-")} <= known
