"""The machine that a command measures on, and the folder that its records go into."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path

from dpbench import environment, store
from dpbench.environment import Environment
from dpbench.launch.machine import Machine


def machine_for(*, synthetic: bool) -> Machine:
    """This machine, or for a synthetic sweep one without GPUs."""
    if synthetic:
        return Machine(cores=environment.usable_cores(), gpus=(), cuda=None, missing_backends=())
    from dpbench.launch.machine import inspect_machine

    return inspect_machine()


def here(machine: Machine, *, synthetic: bool) -> Environment:
    """The environment of this process's records."""
    launcher = environment.SYNTHETIC if synthetic else environment.ELASTIC
    return environment.capture(
        accelerators=machine.gpus, cuda=machine.cuda, nccl=machine.nccl, launcher=launcher
    )


def results_folder(results_dir: Path, name: str | None, *, otherwise: str) -> Path:
    """`name` in the folder of all, or the time and what else tells it apart."""
    if name is not None:
        store.check_name(name)
        return results_dir / name
    time = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return results_dir / f"{time}-{otherwise}"


def free(folder: Path) -> Path:
    """The folder, or where another one was made in the same second, with a number."""
    numbered = (folder.with_name(f"{folder.name}-{number}") for number in count(2))
    return next(one for one in chain((folder,), numbered) if not one.exists())
