"""The machine that a command measures on."""

from __future__ import annotations

from dpbench import environment
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
