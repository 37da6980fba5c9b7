"""The script that runs a dpbench command on the nodes of a Slurm job: text from values.

Slurm starts one task on each node, which is told its number in SLURM_NODEID. The nodes meet at the
first host of the job, at a port that follows from the job's number, so that two jobs on one host
do not share it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

FIRST_PORT, PORTS = 15_000, 15_000
"""Below those that Linux gives to outgoing connections, 32,768 and up."""
PROGRAMS = {"sweep": "dpbench sweep", "train": "dpbench launch"}
MEETING = ('--nnodes "$SLURM_NNODES"', '--rdzv-endpoint "$endpoint"', '--rdzv-id "$SLURM_JOB_ID"')


@dataclass(frozen=True, kw_only=True, slots=True)
class Array:
    """An option of the command, and its value in each job of a job array."""

    option: str
    values: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmJob:
    """What is asked of Slurm, and what runs there."""

    command: str
    """sweep or train."""
    words: tuple[str, ...]
    """What follows it, without the option of the array."""
    name: str
    nodes: int
    gpus_per_node: int | None
    time: str
    partition: str | None
    account: str | None
    array: Array | None
    results_dir: str
    """Of a sweep."""
    comment: str
    """The command that wrote the script."""


def script(job: SlurmJob) -> str:
    """For `sbatch`."""
    blocks = [
        ["#!/bin/bash", *(f"#SBATCH --{line}" for line in _directives(job))],
        [f"# Written by: {job.comment}", "set -euo pipefail"],
        _meeting_point(),
        _of_array(job.array),
        _after_a_restart(job),
        _start(job),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _directives(job: SlurmJob) -> Iterator[str]:
    yield f"job-name={job.name}"
    yield f"nodes={job.nodes}"
    yield "ntasks-per-node=1"
    if job.gpus_per_node is not None:
        yield f"gpus-per-node={job.gpus_per_node}"
    yield "exclusive"
    yield f"time={job.time}"
    if job.partition is not None:
        yield f"partition={job.partition}"
    if job.account is not None:
        yield f"account={job.account}"
    if job.array is None:
        yield "output=%x-%j.out"
    else:
        yield f"array=0-{len(job.array.values) - 1}"
        yield "output=%x-%A_%a.out"


def _meeting_point() -> list[str]:
    """And the token of the nodes, which srun passes on in the environment of the tasks alone."""
    return [
        'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        f"endpoint=$first:$(({FIRST_PORT} + SLURM_JOB_ID % {PORTS}))",
        "DPBENCH_TOKEN=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \\n')",
        "export DPBENCH_TOKEN",
    ]


def _of_array(array: Array | None) -> list[str]:
    if array is None:
        return []
    return [f"values=({shlex.join(array.values)})", "value=${values[SLURM_ARRAY_TASK_ID]}"]


def _after_a_restart(job: SlurmJob) -> list[str]:
    """A job that Slurm puts back into the queue goes on in its own folder."""
    number = "$SLURM_JOB_ID" if job.array is None else "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
    name = f"name={shlex.quote(job.name)}-{number}"
    if job.command == "train":
        return [name, "resume=(--resume auto)"]
    folder = f'{shlex.quote(job.results_dir)}/"$name"'
    return [name, "resume=()", f"if [ -d {folder} ]; then resume=(--resume); fi"]


def _start(job: SlurmJob) -> list[str]:
    """Each task adds its own number; --cpu-bind=none leaves it all cores of its node."""
    program, lines = PROGRAMS[job.command], [*_command(job)]
    if job.command == "train":
        lines = [f"--nproc-per-node {job.gpus_per_node or 1}", "-m dpbench train", *lines]
    task = f'exec {program} --node-rank "$SLURM_NODEID" "$@"'
    srun = f"srun --export=ALL --ntasks-per-node=1 --cpu-bind=none bash -c {shlex.quote(task)} task"
    return [" \\\n  ".join([srun, *MEETING, *lines])]


def _command(job: SlurmJob) -> list[str]:
    lines = [*_options(job.words)]
    if job.array is not None:
        lines.append(f'{job.array.option} "$value"')
    return [*lines, '--name "$name"', '${resume[@]+"${resume[@]}"}']


def _options(words: Sequence[str]) -> Iterator[str]:
    """An option and its value on a line."""
    line: list[str] = []
    for word in words:
        if word.startswith("-") and line:
            yield shlex.join(line)
            line = []
        line.append(word)
    if line:
        yield shlex.join(line)
