"""The script for Slurm says what was asked, and starts one dpbench on each node."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbench.cli.app import run
from dpbench.cli.slurm import Array, SlurmJob, script
from dpbench.launch.nodes.token import VARIABLE, given_token

SLURM = {
    "SLURM_JOB_NODELIST": "node[7-8]",
    "SLURM_NNODES": "2",
    "SLURM_JOB_ID": "40001",
    "SLURM_ARRAY_JOB_ID": "40000",
    "SLURM_ARRAY_TASK_ID": "1",
}
"""What Slurm tells the second job of an array."""

CONFIGURATION = """ClusterName=none
SlurmctldHost=localhost
SlurmctldPort=1
AuthType=auth/munge
MessageTimeout=2
NodeName=none
"""

SCONTROL = """#!/bin/sh
[ "$*" = "show hostnames node[7-8]" ] && printf 'node7\\nnode8\\n'
"""
SRUN = """#!/bin/sh
while [ "${1#--}" != "$1" ]; do shift; done
for node in 0 1; do SLURM_NODEID=$node "$@" || exit; done
"""
DPBENCH = """#!/bin/sh
for word in "$@"; do printf '%s\\0' "$word"; done
printf '\\n'
"""

DPBENCH_WITH_TOKEN = DPBENCH.replace("\n", "\nprintf '%s\\0' \"$DPBENCH_TOKEN\"\n", 1)


def written(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["slurm", *arguments]) == 0
    return capsys.readouterr().out


def directives(text: str) -> dict[str, str]:
    """What Slurm reads: the #SBATCH lines before the first command."""
    lines = text.split("\n\n")[0].splitlines()[1:]
    assert all(line.startswith("#SBATCH --") for line in lines)
    return {
        name: value
        for name, _, value in (line.removeprefix("#SBATCH --").partition("=") for line in lines)
    }


def started(text: str, folder: Path, dpbench: str = DPBENCH) -> list[list[str]]:
    """The words that dpbench gets on each node, from the script with a Slurm of our own."""
    for name, program in (("scontrol", SCONTROL), ("srun", SRUN), ("dpbench", dpbench)):
        (folder / name).write_text(program)
        (folder / name).chmod(0o755)
    finished = subprocess.run(
        ["bash"],
        input=text,
        cwd=folder,
        env={**SLURM, "PATH": f"{folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert finished.stderr == ""
    return [line.split("\0")[:-1] for line in finished.stdout.splitlines()]


def job(**changes: object) -> SlurmJob:
    values: dict[str, object] = {
        "command": "sweep",
        "words": ("--arch", "mlp"),
        "name": "mine",
        "nodes": 2,
        "gpus_per_node": None,
        "time": "10",
        "partition": None,
        "account": None,
        "array": None,
        "results_dir": "results",
        "comment": "dpbench slurm",
    }
    return SlurmJob(**{**values, **changes})  # type: ignore[arg-type]


def test_slurm_is_asked_for_what_was_typed(capsys: pytest.CaptureFixture[str]) -> None:
    options = "--nodes 2 --gpus-per-node 4 --time 1-02:00:00 --partition gpu --account lab"
    text = written(
        capsys, *options.split(), "--array", "batch-sizes", "sweep", "--batch-sizes=8,16"
    )
    asked = directives(text)
    assert asked["nodes"] == "2"
    assert asked["ntasks-per-node"] == "1"
    assert asked["gpus-per-node"] == "4"
    assert asked["time"] == "1-02:00:00"
    assert (asked["partition"], asked["account"]) == ("gpu", "lab")
    assert asked["array"] == "0-1"


def test_every_node_gets_the_same_sweep_and_its_own_number(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["sweep", "--arch", "mlp", "--batch-sizes", "8,16", "--seed", "3"]
    text = written(capsys, "--nodes", "2", "--gpus-per-node", "4", "--array", "batch-sizes", *words)
    first, second = started(text, tmp_path)
    assert first == [
        *("sweep", "--node-rank", "0", "--nnodes", "2"),
        *("--rdzv-endpoint", "node7:25001", "--rdzv-id", "40001"),
        *("--arch", "mlp", "--seed", "3", "--gpus", "4"),
        *("--batch-sizes", "16", "--name", "dpbench-sweep-40000_1"),
    ]
    assert second == [*first[:2], "1", *first[3:]]
    (tmp_path / "results" / "dpbench-sweep-40000_1").mkdir(parents=True)
    assert started(text, tmp_path)[0] == [*first, "--resume"]


def test_all_tasks_of_a_sweep_get_a_token_in_their_environment_and_nowhere_else(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tokens = set()
    for _ in range(2):
        text = written(capsys, "--nodes", "2", "sweep", "--arch", "mlp")
        (first, *words), second = started(text, tmp_path, dpbench=DPBENCH_WITH_TOKEN)
        assert second[0] == first
        assert given_token(None, {VARIABLE: first}) == first
        assert first not in text
        assert first not in words
        tokens.add(first)
    assert len(tokens) == 2


def test_a_training_goes_through_the_launcher(tmp_path: Path) -> None:
    text = script(job(command="train", words=("--epochs", "3"), gpus_per_node=8))
    first, second = started(text, tmp_path)
    assert first == [
        *("launch", "--node-rank", "0", "--nnodes", "2"),
        *("--rdzv-endpoint", "node7:25001", "--rdzv-id", "40001"),
        *("--nproc-per-node", "8", "-m", "dpbench", "train"),
        *("--epochs", "3", "--name", "mine-40001", "--resume", "auto"),
    ]
    assert second[2] == "1"


@given(st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8")), min_size=2))
def test_no_word_is_taken_for_another(words: list[str]) -> None:
    text = script(job(words=tuple(words), array=Array(option="--x", values=tuple(words))))
    body = text[text.index("values=") :]
    assert shlex.split(body.split("\nvalue=")[0].removeprefix("values=(")[:-1]) == words
    assert shlex.join(words) in " ".join(text.split(" \\\n  ")) or not words


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("seep", "Did you mean 'sweep'?"),
        ("sweep --batch-sizes abc", "--batch-sizes: 'abc' is not a positive integer"),
        ("sweep --stepss 3", "No such option: --stepss"),
        ("sweep --nnodes 2", "--nnodes: the script gives it to the command; leave it out"),
        ("sweep --name mine", "--name: the script gives it to the command; give --job-name"),
        ("--nodes 0 sweep", "--nodes: '0' is not a positive integer"),
        ("--gpus-per-node x sweep", "--gpus-per-node: 'x' is not a positive integer"),
        ("--time soon sweep", "--time: expected minutes, HH:MM:SS or D-HH:MM:SS"),
        ("--partition a;b sweep", "--partition: expected letters, digits and _ . , - only"),
        ("--array steps sweep", "the command has no --steps with a value"),
        ("--array steps sweep --steps 5", "expected different values with commas behind --steps"),
        ("--array steps sweep --steps 5,x", "--steps: 'x' is not a positive integer"),
    ],
)
def test_a_wrong_value_is_one_line_and_exit_status_2(
    capsys: pytest.CaptureFixture[str], arguments: str, message: str
) -> None:
    assert run(["slurm", *arguments.split(" ")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err


def test_slurm_itself_takes_the_script(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """As far as sbatch looks before it asks a controller: all options."""
    if (sbatch := shutil.which("sbatch")) is None:
        pytest.skip("needs sbatch, of Debian's slurm-client")
    text = written(capsys, "--nodes", "2", "--array", "seed", "sweep", "--seed", "1,2")
    configuration = tmp_path / "slurm.conf"
    configuration.write_text(CONFIGURATION)
    finished = subprocess.run(
        [sbatch, "--test-only"],
        input=text,
        env={**os.environ, "SLURM_CONF": str(configuration)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Unable to contact slurm controller" in finished.stderr


def test_options_of_several_nodes_are_those_of_a_script_for_several(
    capsys: pytest.CaptureFixture[str],
) -> None:
    several = written(capsys, "--nodes", "2", "sweep", "--interface", "ib0")
    assert "--interface ib0" in several
    assert run(["slurm", "--nodes", "1", "sweep", "--interface", "ib0"]) == 2


@pytest.mark.parametrize(
    "words",
    [
        ("batch-sizes", "sweep", "--batch-sizes", "8,16", "--batch-sizes", "32,64"),
        ("results-dir", "sweep", "--results-dir", "a,b"),
    ],
)
def test_an_array_needs_one_list_that_may_differ(words: tuple[str, ...]) -> None:
    assert run(["slurm", "--array", *words]) == 2
