"""The script for Slurm says what was asked, and starts one dpbench on each node."""

from __future__ import annotations

import contextlib
import os
import random
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbench.cli.app import run
from dpbench.cli.slurm import FIRST_PORT, PORTS, Array, SlurmJob, script
from dpbench.launch.nodes.handshake import VARIABLE, given_token
from tests.cli.command import environment

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
        "replicas": 1,
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
        *("--rdzv-endpoint", "node7:25001"),
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
    text = script(job(command="train", words=("--epochs", "3"), replicas=8))
    first, second = started(text, tmp_path)
    assert first == [
        *("launch", "--node-rank", "0", "--nnodes", "2"),
        *("--rdzv-endpoint", "node7:25001"),
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
        ("train --resume auto", "--resume: the script gives it to the command; leave it out"),
        ("train --nnodes 2", "--nnodes: the script gives it to the command; leave it out"),
        ("--nodes 0 sweep", "--nodes: '0' is not a positive integer"),
        ("--gpus-per-node x sweep", "--gpus-per-node: 'x' is not an integer of at least 0"),
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


@pytest.mark.parametrize(
    ("words", "gpus", "processes"),
    [
        ("train --gpus 8", "8", "8"),
        ("train --group-size=2 --epochs 3", "2", "2"),
        ("--gpus-per-node 4 train --gpus 2", "4", "2"),
        ("--gpus-per-node 4 train", "4", "4"),
        ("--gpus-per-node 0 train --gpus 2", None, "2"),
        ("train", None, "1"),
        ("--array gpus train --gpus 2,4", "4", "4"),
        ("sweep --gpus 8", "8", None),
        ("--gpus-per-node 0 sweep --gpus 8", None, None),
        ("--array gpus sweep --gpus 2,4", "4", None),
        ("sweep", None, None),
    ],
)
def test_slurm_is_asked_for_the_gpus_that_the_command_takes(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    words: str,
    gpus: str | None,
    processes: str | None,
) -> None:
    text = written(capsys, *words.split())
    assert directives(text).get("gpus-per-node") == gpus
    first, _ = started(text, tmp_path)
    if processes is not None:
        assert first[first.index("--nproc-per-node") + 1] == processes
        assert not {"--gpus", "--group-size"} & set(first)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("sweep --gpus 4,5", "--gpus 4,5: Slurm says which GPUs a job has; expected how many"),
        ("train --gpus 4,5", "--gpus 4,5: Slurm says which GPUs a job has; expected how many"),
        ("--gpus-per-node 4 train --gpus 8", "--gpus 8 is more than --gpus-per-node 4"),
        ("train --epochs x", "--epochs: 'x' is not a positive integer"),
        ("train --config two.yaml", "gpus 2 of a file: the launcher says how many there are"),
    ],
)
def test_gpus_that_no_job_can_have_are_refused(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("two.yaml").write_text("gpus: 2\n")
    assert run(["slurm", *words.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err


TASKS_AT_ONCE = """#!/bin/bash
while [ "${1#--}" != "$1" ]; do shift; done
for ((node = 0; node < SLURM_NNODES; node++)); do SLURM_NODEID=$node "$@" & done
status=0
for job in $(jobs -p); do wait "$job" || status=$?; done
exit $status
"""
"""srun, with all nodes on this host."""
REAL = f"""#!/bin/sh
exec {sys.executable} -m dpbench "$@"
"""


def job_with_a_free_port() -> int:
    """The number of a job whose nodes can meet here while other tests run."""
    while True:
        number = random.randrange(PORTS)
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("localhost", FIRST_PORT + number))
            return 10 * PORTS + number


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "left"),
    [
        (
            "train --gpus 2 --arch mlp --epochs 1 --limit-train 32 --batch-size 8",
            "runs/dpbench-train-{job}/log.jsonl",
        ),
        (
            "sweep --gpus 2 --arch mlp --implementations ddp --batch-sizes 8 --group-sizes 2"
            " --warmup 1 --steps 2 --phases 0 --repetitions 1 --no-charts",
            "results/dpbench-sweep-{job}/trials.jsonl",
        ),
    ],
)
def test_the_script_runs_to_its_end_where_srun_starts_the_tasks(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: str, left: str
) -> None:
    text = written(capsys, "--gpus-per-node", "0", *words.split())
    job = job_with_a_free_port()
    local = '#!/bin/sh\nprintf "localhost\\n"\n'
    for name, program in (("scontrol", local), ("srun", TASKS_AT_ONCE), ("dpbench", REAL)):
        (tmp_path / name).write_text(program)
        (tmp_path / name).chmod(0o755)
    finished = subprocess.run(
        ["bash"],
        input=text,
        cwd=tmp_path,
        env={
            **environment(),
            **SLURM,
            "SLURM_NNODES": "1",
            "SLURM_JOB_ID": str(job),
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert (tmp_path / left.format(job=job)).read_text()


def test_an_array_of_architectures_keeps_the_options_of_each(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("sweep", "--arch", "mlp:width=4,layers=2,mnist_cnn")
    text = written(capsys, "--nodes", "2", "--array", "arch", *words)
    assert "values=(mlp:width=4,layers=2 mnist_cnn)" in text
