"""`dpbench slurm`: a script for sbatch that sweeps or trains on the nodes of a Slurm job."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from dpbench.errors import UsageError
from dpbench.messages import escaped
from dpbench.run.option_layers import given_options, has_option
from dpbench.run.shared_options import NodeOptions
from dpbench.run.sweep.options import SweepOptions
from dpbench.run.training.command import TrainCommand
from dpbench.specs.settings import AUTO, Auto, as_typed, settings_of
from dpbench.specs.training import RESUME_LATEST
from dpbench.values import NOT_BEFORE_OPTION, at_commas, integer, known_name, positive_int, shorten

COMMANDS: dict[str, tuple[Any, ...]] = {
    "sweep": (SweepOptions,),
    "train": (TrainCommand, NodeOptions),
}
"""The commands with their options; a training goes through a launcher, which has those of nodes."""
GPUS = ("--gpus", "--group-size")
"""Options that give a training its number of replicas."""
_TIME = re.compile(r"(\d+-)?\d+(:\d+){0,2}")
"""Slurm's: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS."""
TIMES = "minutes, HH:MM:SS or D-HH:MM:SS, as Slurm writes them"
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.,-]*")
FIRST_PORT, PORTS = 15_000, 15_000
"""Ports below those that Linux gives to outgoing connections, 32,768 and up."""
PROGRAMS = {"sweep": "dpbench sweep", "train": "dpbench launch"}
MEETING = ('--nnodes "$SLURM_NNODES"', '--rdzv-endpoint "$endpoint"')


def slurm(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="sweep|train [OPTIONS]",
            help="The command and its options.",
            show_default=False,
        ),
    ],
    nodes: Annotated[str, typer.Option(metavar="N", help="Number of nodes.")] = "1",
    gpus_per_node: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            show_default="--gpus of the command",
            help="GPUs to request on each node; 0: none, for replicas on CPUs.",
        ),
    ] = None,
    time: Annotated[
        str, typer.Option(metavar="TIME", help="Time limit of the job, as Slurm writes it.")
    ] = "01:00:00",
    partition: Annotated[
        str | None, typer.Option(metavar="NAME", help="Partition of the cluster.")
    ] = None,
    account: Annotated[str | None, typer.Option(metavar="NAME", help="Account to charge.")] = None,
    job_name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Name of the job; its number is added for the results folder.",
            show_default="dpbench-sweep or dpbench-train",
        ),
    ] = None,
    array: Annotated[
        str | None,
        typer.Option(
            metavar="OPTION",
            help="Option whose comma-separated values become one job each, e.g. batch-sizes.",
        ),
    ] = None,
) -> None:
    """Print a Slurm script that runs a sweep or a training.

    dpbench slurm --nodes 2 --gpus-per-node 8 --time 02:00:00 sweep --batch-sizes 32,64 > job.sbatch
    """
    typed = _typed_words(locals())
    name, *words = command
    known_name("COMMAND", name, COMMANDS)
    _refuse_script_options(name, words)
    count_of_nodes = positive_int("--nodes", nodes)
    requested = None
    if gpus_per_node is not None:
        requested = integer("--gpus-per-node", gpus_per_node, least=0)
    if name == "sweep" and requested and not has_option(words, "--gpus"):
        words += ["--gpus", str(requested)]
    remaining, found = (words, None) if array is None else _split_array(words, array)
    runs = [remaining]
    if found is not None:
        runs = [[*remaining, found.option, value] for value in found.values]
    replicas = (_replicas(name, one, several=count_of_nodes > 1) for one in runs)
    most = max((count for count in replicas if count is not None), default=None)
    if requested and most is not None and most > requested:
        raise UsageError(
            f"--gpus {most} is more than --gpus-per-node {requested}; expected at most {requested}"
        )
    job = SlurmJob(
        command=name,
        words=tuple(remaining if name == "sweep" else _without_gpus(remaining)),
        name=_safe("--job-name", job_name or f"dpbench-{name}"),
        nodes=count_of_nodes,
        gpus_per_node=(most if requested is None else requested) or None,
        replicas=most or requested or 1,
        time=_safe("--time", time, _TIME, TIMES),
        partition=None if partition is None else _safe("--partition", partition),
        account=None if account is None else _safe("--account", account),
        array=found,
        results_dir=_value(words, "--results-dir") or "results",
        comment=escaped(f"dpbench slurm {shlex.join([*typed, *command])}"),
    )
    typer.echo(script(job), nl=False)


def _typed_words(typed: dict[str, Any]) -> list[str]:
    """The options as they would be typed."""
    return [
        word
        for name, value in typed.items()
        if name != "command" and value is not None
        for word in (f"--{name.replace('_', '-')}", value)
    ]


def _refuse_script_options(name: str, words: Sequence[str]) -> None:
    """Raises UsageError for an option that the script gives to the command."""
    declared = (one for options in COMMANDS[name] for one in settings_of(options).values())
    for option in (one.option for one in declared if one.in_script):
        if has_option(words, option):
            remedy = "give --job-name" if option == "--name" else "leave it out"
            raise UsageError(f"{option}: the script gives it to the command; {remedy}")


def _value(words: Sequence[str], option: str) -> str | None:
    """The value of an option, as "--name value" or "--name=value"; None without it."""
    for word, following in zip(words, [*words, None][1:], strict=True):
        if word == option:
            return following
        if word.startswith(f"{option}="):
            return word.removeprefix(f"{option}=")
    return None


def _split_array(words: Sequence[str], name: str) -> tuple[list[str], Array]:
    """The words without the option, and its values."""
    option = f"--{name.removeprefix('--').replace('_', '-')}"
    if option == "--results-dir":
        raise UsageError("--array results-dir: the jobs share a folder; choose another option")
    if sum(word == option or word.startswith(f"{option}=") for word in words) > 1:
        raise UsageError(f"--array {shorten(name)}: {option} is given twice; give it once")
    if (text := _value(words, option)) is None:
        raise UsageError(
            f"--array {shorten(name)}: the command has no {option} with a value; expected one of "
            "its options, as in --array batch-sizes sweep --batch-sizes 32,64"
        )
    split = NOT_BEFORE_OPTION.split if option == "--arch" else at_commas
    values = [value.strip() for value in split(text)]
    if len(values) < 2 or not all(values) or len(set(values)) < len(values):
        raise UsageError(
            f"--array {shorten(name)}: expected different values with commas behind {option}, got "
            f"{shorten(text)}"
        )
    taken = words.index(option) if option in words else words.index(f"{option}={text}")
    rest = [*words[:taken], *words[taken + (2 if option in words else 1) :]]
    return rest, Array(option=option, values=tuple(values))


def _without_gpus(words: Sequence[str]) -> list[str]:
    """The words of a training without its number of replicas, which the launcher gets."""
    kept, skip = [], False
    for word in words:
        if not skip and word not in GPUS and not word.startswith(tuple(f"{g}=" for g in GPUS)):
            kept.append(word)
        skip = not skip and word in GPUS
    return kept


def _replicas(name: str, words: Sequence[str], *, several: bool) -> int | None:
    """The number of replicas on a node that the words ask for; None where they leave it open.

    Raises what the command would raise for its options on any machine. A sweep over several nodes
    gets what the script will add for that.
    """
    if name == "sweep" and several:
        words = [*words, "--nnodes", "2", "--node-rank", "0", "--rdzv-endpoint", "host0:15000"]
    from dpbench.cli.app import commands
    from dpbench.run.sweep.arguments import SweepArguments

    with commands().commands[name].make_context(f"dpbench {name}", [*words]) as context:
        if name == "sweep":
            asked = SweepArguments.of(context, context.params)
            gpus = asked.parsed(asked.options())[0].options.gpus
        else:
            gpus = _gpus_of_training(context)
    if isinstance(gpus, tuple):
        raise UsageError(
            f"--gpus {as_typed(gpus)}: Slurm says which GPUs a job has; expected how many"
        )
    return None if gpus is AUTO else gpus


def _gpus_of_training(context: typer.Context) -> int | tuple[int, ...] | Auto:
    from dpbench.run.training.arguments import TrainArguments

    given = given_options(context)
    gpus = TrainArguments(typed=context.params, given=given).read().options.gpus
    if gpus is not AUTO and "gpus" not in given:
        raise UsageError(
            f"gpus {as_typed(gpus)} of a file: the launcher says how many there are; leave it out "
            "there, and give --gpus"
        )
    return gpus


def _safe(
    option: str,
    text: str,
    pattern: re.Pattern[str] = _WORD,
    expected: str = "letters, digits and _ . , - only",
) -> str:
    """The text, which is safe in a line that Slurm reads; raises UsageError."""
    if not pattern.fullmatch(text):
        raise UsageError(f"{option}: expected {expected}, got {shorten(text)}")
    return text


@dataclass(frozen=True, kw_only=True, slots=True)
class Array:
    """Option whose comma-separated values become one job each, e.g. batch-sizes."""

    option: str
    values: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmJob:
    """Request to Slurm, and the command that runs there."""

    command: str
    """sweep or train."""
    words: tuple[str, ...]
    """The words after it, without the option of the array."""
    name: str
    nodes: int
    gpus_per_node: int | None
    """GPUs asked of Slurm; None for none."""
    replicas: int
    """Processes of a training on each node."""
    time: str
    partition: str | None
    account: str | None
    array: Array | None
    results_dir: str
    """Folder of the results of a sweep."""
    comment: str
    """The command that wrote the script."""


def script(job: SlurmJob) -> str:
    """Writes the script that `sbatch` takes."""
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
    """Endpoint and token of the nodes; srun passes the token on in the environment of the tasks."""
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
        return [name, f"resume=(--resume {RESUME_LATEST})"]
    folder = f'{shlex.quote(job.results_dir)}/"$name"'
    return [name, "resume=()", f"if [ -d {folder} ]; then resume=(--resume); fi"]


def _start(job: SlurmJob) -> list[str]:
    """Each task adds its own number; --cpu-bind=none leaves it all cores of its node."""
    program, lines = PROGRAMS[job.command], [*_command(job)]
    if job.command == "train":
        count = '"$value"' if _varies_replicas(job) else str(job.replicas)
        lines = [f"--nproc-per-node {count}", "-m dpbench train", *lines]
    task = f'exec {program} --node-rank "$SLURM_NODEID" "$@"'
    srun = f"srun --export=ALL --ntasks-per-node=1 --cpu-bind=none bash -c {shlex.quote(task)} task"
    return [" \\\n  ".join([srun, *MEETING, *lines])]


def _varies_replicas(job: SlurmJob) -> bool:
    return job.command == "train" and job.array is not None and job.array.option in GPUS


def _command(job: SlurmJob) -> list[str]:
    lines = [*_options(job.words)]
    if job.array is not None and not _varies_replicas(job):
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
