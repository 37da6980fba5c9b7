"""Small specifications that tests build on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpbench.launch.machine import Machine
from dpbench.records.environment import Environment
from dpbench.specs import GRID, Configuration, SweepSpec, WorkloadSpec
from dpbench.specs.command_line import CommandLine
from dpbench.specs.configuration import DEFAULTS

WORKLOAD = WorkloadSpec(architecture="mnist_cnn", dataset="digits")

HERE = Environment(
    hostname="h",
    system="Linux",
    kernel="6.1",
    python="3.11.7",
    cpu="A",
    cores=2,
    memory_bytes=2**34,
    versions={"torch": "2.13.0"},
)
"""The environment of records that are not measured."""
MACHINE = Machine(environment=HERE)


TINY_TRAINING = (
    *("--arch", "tests.launch.faulty:Healthy", "--limit-train", "48", "--batch-size", "4"),
    *("--epochs", "2", "--log-interval", "3", "--timeout", "30"),
)
"""Options of dpbench train for one that takes no time: 6 steps an epoch at group size 2."""


def configuration(**changes: Any) -> Configuration:
    """ddp on gloo, one step; `devices` follows `group_size`."""
    values: dict[str, Any] = {
        "workload": WORKLOAD,
        "implementation": "ddp",
        "backend": "gloo",
        "group_size": 2,
        "batch_size": 4,
        "warmup": 1,
        "steps": 3,
        "threads": 1,
    }
    values.update(changes)
    values.setdefault("devices", ("cpu",) * values["group_size"])
    return Configuration(**values)


def script_configuration(
    script: Path, *arguments: object, implementation: str = "script", **changes: Any
) -> Configuration:
    """Ten steps of a training script, at the batch that it chooses."""
    workload = WorkloadSpec(
        architecture=script.name, dataset="", script=(str(script), *map(str, arguments))
    )
    values: dict[str, Any] = {
        "workload": workload,
        "implementation": implementation,
        "backend": "own" if implementation in ("script", "ddp") else "none",
        "batch_size": None,
        "warmup": 4,
        "steps": 10,
    }
    return configuration(**values | changes)


def sweep_spec(**changes: Any) -> SweepSpec:
    """`single`, the two implementations of ours on gloo, two group sizes, two batch sizes."""
    values: dict[str, Any] = {
        "implementations": ("dp", "ddp"),
        "backends": ("gloo",),
        "workloads": (WORKLOAD,),
        "group_sizes": (1, 2),
        "devices": ("cpu", "cpu"),
        "repetitions": 2,
        "time_limit_seconds": 30.0,
    }
    values |= {name: value for name, value in changes.items() if name not in GRID}
    values["implementations"] = tuple(dict.fromkeys(("single", *values["implementations"])))
    axes = {name: (DEFAULTS[name],) for name in GRID if name in DEFAULTS}
    axes |= {"batch_size": (4, 8), "warmup": (1,), "steps": (3,), "threads": (1,)}
    axes["architecture"] = tuple(workload.architecture for workload in values["workloads"])
    axes |= {name: changes[name] for name in GRID if name in changes}
    return SweepSpec(axes=axes, **values)


def command(name: str = "sweep", /, **options: Any) -> CommandLine:
    """The command of this name, with options by field."""
    return CommandLine(name=name, options=options)
