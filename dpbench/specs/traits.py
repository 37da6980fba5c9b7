"""The backends and implementations that there are, and what must be known of each to plan with it.

None is imported for that: the traits of an implementation are a literal in its file.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dpbench.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class BackendTraits:
    """Traits of a backend of process groups, by which the gradients of ranks travel."""

    description: str
    one_host: bool = False
    """True where ranks share the memory of one machine, so that none can be on another."""
    cuda_only: bool = False
    """True where it reduces CUDA tensors only, of ranks with a GPU each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImplementationTraits:
    """Traits of an implementation that the planner needs without importing it."""

    name: str
    """The name of its file, with dashes."""
    order: int
    """Position in lists and in charts; smaller numbers come first."""
    description: str
    ours: bool = False
    """True for a part of dpbench.parallel, False for another library's."""
    can_run_unsynced: bool = False
    """True where a step can also be timed without gradient synchronization."""
    exchange: Literal["ranks", "threads", "none"] = "ranks"
    """Between what gradients are exchanged: ranks, by any backend of BACKENDS; threads, if one
    process drives all replicas; or none. The last two stand in place of a backend."""
    largest_group: int | None = None
    averages_parameters: bool = False
    """True where ranks train alone and average parameters every `sync_every` steps."""
    settings: tuple[str, ...] = ()
    """Settings that it has and some others do not, by their field of a Configuration."""
    shards: Literal["parameters", "optimizer"] | None = None
    """"parameters" where they are DTensors, of which each rank may hold a part; "optimizer" where
    each rank steps a part of them, on gradients that it alone has."""
    requires: str | None = None
    """The package it needs beside torch, as its import is spelled; None where torch is enough."""
    needs_cuda: str | None = None
    """Why it runs on CUDA devices only; None where it runs on any device."""
    alternative: str | None = None
    """An implementation that replaces it and may cost less per step."""

    @property
    def one_process(self) -> bool:
        """Whether one process drives all replicas."""
        return self.exchange == "threads"

    @property
    def communicates(self) -> bool:
        """Whether replicas ever exchange gradients."""
        return self.exchange != "none"

    @property
    def has_local_state(self) -> bool:
        """Whether gradients, and the optimizer's state dict, may differ between ranks."""
        return self.averages_parameters or self.shards == "parameters"

    def has_setting(self, name: str) -> bool:
        """Whether its rows differ by this field of a Configuration; most settings belong to all."""
        return name in self.settings or name not in OPTIONAL_SETTINGS


BACKENDS = {
    "gloo": BackendTraits(description="torch's CPU collectives over TCP"),
    "nccl": BackendTraits(description="NVIDIA's GPU collectives, one GPU per rank", cuda_only=True),
    "shm": BackendTraits(
        description="dpbench's collectives through the shared memory of one host", one_host=True
    ),
    "nccl-legacy": BackendTraits(
        description="NCCL with torch's older process group (torch 2.14 or later)", cuda_only=True
    ),
    "nccl2": BackendTraits(
        description="NCCL with torch's newer process group, which nccl is from torch 2.15 on",
        cuda_only=True,
    ),
}


def usual_backend(device: str) -> str:
    """The backend of ranks on such a device, "cpu" or "cuda:0", unless another is asked for."""
    return "gloo" if device == "cpu" else "nccl"


def backend_conflict(backend: str, devices: Sequence[str]) -> str | None:
    """Why ranks on these devices can use the backend on no machine; None if they could."""
    if backend not in BACKENDS or not BACKENDS[backend].cuda_only:
        return None
    if devices[0].startswith("cpu"):
        return f"{backend} reduces CUDA tensors only"
    if len({*devices}) < len(devices):
        return f"{backend} needs a GPU of its own for every rank"
    return None


IMPLEMENTATIONS_FOLDER = Path(__file__).parents[1] / "measure" / "implementations"


def read_traits(path: Path) -> ImplementationTraits | None:
    """The literal `TRAITS` of a file, read without importing it; None for a helper module, which
    has no function `wrap`.

    Raises UsageError if a file with `wrap` has no `TRAITS`, or none that is a literal of the fields
    of ImplementationTraits.
    """
    literal, wraps = None, False
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="TRAITS")]):
                literal = statement.value
            case ast.FunctionDef(name="wrap"):
                wraps = True
    if not wraps:
        return None
    if literal is None:
        raise UsageError(f"implementation {path}: the file has no TRAITS")
    try:
        return ImplementationTraits(name=path.stem.replace("_", "-"), **ast.literal_eval(literal))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"implementation {path}: TRAITS: {error}; expected a literal with the fields of "
            "dpbench.specs.traits.ImplementationTraits"
        ) from None


_FOUND = [
    traits for path in IMPLEMENTATIONS_FOLDER.glob("[!_]*.py") if (traits := read_traits(path))
]
BUILT_IN = {traits.name: traits for traits in sorted(_FOUND, key=lambda one: (one.order, one.name))}
"""The implementations of dpbench's own training loop: one file each."""
SCRIPT = "script"
"""The user's training script, unchanged."""
OWN_BACKEND = "own"
"""Stands for the backend that a script chooses itself."""
IMPLEMENTATIONS = BUILT_IN | {
    SCRIPT: ImplementationTraits(
        name=SCRIPT,
        order=200,
        description="your training script as it is",
        can_run_unsynced=True,
        settings=("bucket_cap_mb", "find_unused"),
    )
}
SINGLE = "single"
"""The plain module on one device, which speedups are relative to."""
INDEPENDENT = "independent"
"""Plain copies at once that do not train together."""
OPTIONAL_SETTINGS = {name for traits in IMPLEMENTATIONS.values() for name in traits.settings}
"""Settings that some implementations have and others do not."""
